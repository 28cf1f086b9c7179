"""Fast implementations for the blocks. You do not need them to understand a Transformer.

prepared      PreparedMask: a mask in the form that an attention kernel reads; KernelHints: sizes known in advance
choose        chooses an attention kernel and prepares the mask for it
sdpa  flex  varlen  short      the attention kernels; the reference is `eager` in `blocks/attention.py`
selection     computes the last block only at the positions whose outputs are needed
linear_gelu   the bias and GELU after a linear map in one Triton kernel; training installs it
gpu           checks whether Triton can run, and selects the GPU that it runs on
"""
