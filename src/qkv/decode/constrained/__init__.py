"""Constrained decoding by regular expression, JSON schema or grammar."""
