"""The tasks, one file each: what a model is asked, and everything that follows from it."""
