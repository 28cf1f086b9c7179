"""GELU of a linear map's output on a GPU, with the map's bias: gelu(x + b), for training in half precision.

Compiled, GELU is bound by the arithmetic of erf or tanh rather than by memory, and the gradient of the bias is a pass
of its own over what GELU's gradient has just written. Here x is read once in either direction, the bias comes along.

Both kinds of GELU are x · σ(p(x)) with an odd polynomial p. For the tanh kind that is the same function; for the one
with the error function it is off by 1.2e-4 at most, for |x| < 5.5 by 0.17 % at most: less than bfloat16 rounds away.
"""

from importlib import import_module
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from qkv.blocks.kernels.gpu import has_triton

GELU_COEFFICIENTS = {
    # log Φ(x) − log Φ(−x), fitted for |x| < 5.5; beyond, it goes on growing
    "gelu": (1.5934049453018608, 0.0756068525649949, -0.0009703515369699761, 8.682845895446185e-06),
    # 2 · √(2/π) · (x + 0.044715 x³)
    "gelu_tanh": (1.5957691216057308, 0.07135481627159544, 0.0, 0.0),
}
"""p(x) / x, in powers of x²."""
kernels: Any = None
"""The module with the kernels, once it is loaded."""


def load_kernels() -> None:
    """Load the kernels, where they can run. Before a network is compiled: the compiler cannot look into an import."""
    global kernels
    if has_triton():
        kernels = import_module("qkv.blocks.kernels.linear_gelu_triton")


def is_supported(kind: str, up: nn.Module, x: Tensor) -> bool:
    """Whether there is a kernel for GELU of `up(x)`: of a plain linear map with a bias, in half precision."""
    if (
        kernels is None
        or kind not in GELU_COEFFICIENTS
        or type(up) is not nn.Linear
        or up.bias is None
        or not x.is_cuda
    ):
        return False
    if hasattr(up.weight, "placements") or up._forward_hooks or up._forward_pre_hooks:
        return False  # spread over processes, or with somebody looking on
    autocast = torch.is_autocast_enabled(x.device.type) and x.dtype != torch.float64
    computed = torch.get_autocast_dtype(x.device.type) if autocast else x.dtype
    return computed == torch.bfloat16 or (computed == torch.float16 and kind == "gelu_tanh")


def linear_gelu(kind: str, up: nn.Linear, x: Tensor) -> Tensor:
    """GELU of up(x)."""
    out: Tensor = kernels.biased_gelu(F.linear(x, up.weight), up.bias, list(GELU_COEFFICIENTS[kind]))
    return out
