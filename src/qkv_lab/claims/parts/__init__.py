"""Claims about the parts of a Transformer."""
