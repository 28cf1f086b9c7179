"""Decoding on a CPU: a fast step, packed, int8 and int4 weights, encoding without padding."""
