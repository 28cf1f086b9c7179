"""The text processor of the translator that comes with qkv: it handles texts that a small translator cannot.

careful        the processor, which a model declares with `"text_processor": "careful"` in its config.json
verbatim       what is copied, such as URLs and unseen symbols, and texts in brackets
lost_numbers   numbers that a translation has lost
capitals       sentences in capital letters
"""
