"""Attention and feed-forward kernels that exist for speed alone; the equations are in `blocks/attention.py` and `blocks/feedforward.py`."""
