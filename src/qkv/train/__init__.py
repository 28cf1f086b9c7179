"""Training: a recipe and rows in, a run folder with a model out."""
