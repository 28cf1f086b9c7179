"""One module for each task: run it on texts, and evaluate a model on it."""
