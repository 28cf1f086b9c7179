"""Continuous batching: many requests decoded together over a paged key/value cache."""
