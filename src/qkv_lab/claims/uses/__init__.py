"""Claims about uses of models."""
