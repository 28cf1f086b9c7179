"""Translate and summarise texts of any length, with what a small model cannot do outside of it.

parts          `m.translate` and `m.summarise`: a text part by part
verbatim       what a translator copies, such as URLs and unseen symbols, and texts in brackets
lost_numbers   numbers that a translation has lost
capitals       sentences in capital letters
align          which source word a word depends on
"""
