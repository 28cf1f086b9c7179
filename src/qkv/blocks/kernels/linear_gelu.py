"""The bias and GELU of a linear map in one kernel, gelu(x + b). Training on a GPU can install it.

The GELU that torch.compile generates is limited by erf or tanh arithmetic, and its bias gradient needs a second pass
over memory. The fused kernel reads x once in the forward pass and once in the backward pass. It approximates the erf
GELU, so it is opt-in.
"""

from torch import nn

from qkv.blocks.feedforward import FeedForward
from qkv.blocks.kernels.gpu import has_triton


def install_fused_gelu(network: nn.Module) -> int:
    """Install the fused kernel in all feed-forward layers with GELU, and return the number of these layers.

    A layer still uses torch's GELU in evaluation mode, with a tap, and where `is_supported` returns False (float32, for
    example). Call this before the network is compiled: the compiler cannot trace the import of the kernel.
    """
    if not has_triton():
        return 0
    from qkv.blocks.kernels.linear_gelu_triton import GELU_COEFFICIENTS, linear_then_bias_gelu

    layers = [module for module in network.modules() if type(module) is FeedForward]
    layers = [layer for layer in layers if layer.kind in GELU_COEFFICIENTS]
    for layer in layers:
        layer.fused = linear_then_bias_gelu
    return len(layers)
