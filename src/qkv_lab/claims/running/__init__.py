"""Claims about running a model."""
