"""The tasks, one file each: how a model is run on texts (`run`) and how it is evaluated on records (`evaluate`).

text_to_text, language               tasks of models that generate text
fill, classify, tag, answer, embed   tasks of models with other heads
generate                             generation in batches, which `Model` also uses
trace                                the activations of one text
example_batches                      an objective's examples as padded batches
"""
