"""What tasks need to run a model.

example_batches, logits      texts and an objective's examples as padded batches; the logits of a classifier
token_losses                 the losses of tokens, which evaluate language models
generate, generated_text     generation in batches; its result
translation/                 texts of any length, sentence by sentence
complete                     the search for completions of a text that is being typed
long_texts                   texts with more tokens than the model can read
trace, look                  the activations of one text, and the page of `qkv look`
"""
