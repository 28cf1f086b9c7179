"""Checks of configs, with error messages; skip them on a first reading."""
