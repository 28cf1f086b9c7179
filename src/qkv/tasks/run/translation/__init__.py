"""Translate and summarise texts of any length.

options      the options of both
parts        `m.translate` and `m.summarise`: a text part by part
processors   what a model's text processor does before and after it reads a sentence
align        which source word a word depends on
"""
