"""Tokenizer files: tokenizer.json, and the older formats of BERT, GPT-2, SentencePiece and Marian."""
