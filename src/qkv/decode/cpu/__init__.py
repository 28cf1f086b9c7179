"""Decoding on a CPU: a fast step, packed and int8 weights, encoding without padding."""
