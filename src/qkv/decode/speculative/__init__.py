"""Speculative decoding: cheap proposals verified by the model."""
