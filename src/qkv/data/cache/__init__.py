"""Encoded examples: the memory-mapped token cache on disk, and examples in memory."""
