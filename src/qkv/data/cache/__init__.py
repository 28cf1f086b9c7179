"""Encoded examples, stored on disk (the token cache) or in memory."""
