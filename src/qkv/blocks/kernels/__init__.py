"""What makes the blocks fast without changing what they compute. Nothing here is needed to understand a Transformer.

prepared      PreparedMask: a mask in the form that one attention kernel reads; KernelHints: sizes known in advance
choose        which attention kernel runs, and preparing a mask for it
sdpa  flex  varlen  short      the attention kernels; the reference is `eager` in `blocks/attention.py`
selection     computing the last block only at the positions whose outputs are needed
static_cache  a key/value cache of fixed shape, for CUDA graphs
linear_gelu   a linear map and its GELU in one Triton kernel, which training installs
gpu           whether Triton can run, and which device it runs on
"""
