"""Training: a recipe and sequences in, a run folder with a model out."""
