"""The training loss: the module that computes it, and its fused cross-entropy kernels."""
