"""A training run on disk: its folder, its signals, its trackers, and loading a model from it."""
