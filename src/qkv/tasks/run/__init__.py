"""The tasks, one file each: how a model is run on texts (`run`) and how it is evaluated on records (`evaluate`).

text_to_text, language               tasks of models that generate text
fill, classify, tag, answer, embed   tasks of models with other heads
translation                          `m.translate` and `m.summarise`, for texts of any length
complete                             `m.complete`: suggestions while a text is being typed
generate                             generation in batches, which `Model` also uses
example_batches                      texts and an objective's examples as padded batches
long_texts                           texts with more tokens than the model can read
trace, look                          the activations of one text, and the page of `qkv look`
"""
