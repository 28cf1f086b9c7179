"""GELU of a linear map's output fused with the map's bias, gelu(x + b): an option that training on a GPU installs.

Compiled by torch, GELU is bound by the arithmetic of erf or tanh rather than by memory, and the gradient of the bias
takes another pass over what GELU's gradient has just written. The fused kernel reads x once in either direction.
It computes the error-function GELU by an approximation, so it is never used unless it is installed.
"""

from torch import nn

from qkv.blocks.feedforward import FeedForward
from qkv.blocks.kernels.gpu import has_triton


def install_fused_gelu(network: nn.Module) -> int:
    """Install the fused kernel in all feed-forward layers with GELU; returns how many there are.

    A layer still uses torch's GELU outside of training, with a tap, and where `is_supported` says no (float32, for
    example). Call it before the network is compiled: the compiler cannot trace the import.
    """
    if not has_triton():
        return 0
    from qkv.blocks.kernels.linear_gelu_triton import GELU_COEFFICIENTS, linear_gelu

    layers = [module for module in network.modules() if isinstance(module, FeedForward)]
    layers = [layer for layer in layers if layer.kind in GELU_COEFFICIENTS]
    for layer in layers:
        layer.fused = linear_gelu
    return len(layers)
