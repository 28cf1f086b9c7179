"""Tokenizer files of other libraries."""
