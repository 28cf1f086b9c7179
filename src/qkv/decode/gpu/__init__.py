"""Decoding on a GPU: static caches, CUDA graphs, fused kernels."""
