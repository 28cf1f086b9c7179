"""Claims about what happens inside a model."""
