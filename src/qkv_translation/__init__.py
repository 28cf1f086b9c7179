"""The text processor of the translator that comes with qkv: what a small translator cannot do by itself.

careful        the processor, which a model declares with `"text_processor": "careful"` in its config.json
verbatim       what is copied, such as URLs and unseen symbols, and texts in brackets
lost_numbers   numbers that a translation has lost
capitals       sentences in capital letters
"""
