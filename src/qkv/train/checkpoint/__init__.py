"""Checkpoints: written atomically, one shard per process, verified by checksum when read."""
