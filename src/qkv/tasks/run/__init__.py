"""The tasks, one file each: how a model is run on texts (`run`) and how it is evaluated on records (`evaluate`).

text_to_text, language            models that generate; `generate` has what they share with `Model`
fill, classify, tag, answer, embed
example_batches                   an objective's examples as padded batches
"""
