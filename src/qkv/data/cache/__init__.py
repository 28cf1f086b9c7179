"""Encoded examples: the token cache on disk, and the same in memory."""
