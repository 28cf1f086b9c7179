"""Batches for training: torch tensors, the loader that yields them, and its worker processes."""
