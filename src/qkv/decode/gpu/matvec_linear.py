"""Linear maps for compiled steps of one sequence, in which every product is a matrix times a vector.

Here the product is written as a sum. The compiler fuses the sum with the operations around it into one kernel: the norm
before it, and the bias, the gate and the residual sum after it. It cannot fuse a library call for matrix products. In
eager mode the sum is slow, because it writes all elementwise products to memory.

I inputs, O outputs
"""

import copy
from collections.abc import Callable
from typing import TypeVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

CopiedNetwork = TypeVar("CopiedNetwork", bound=nn.Module)


class MatvecLinear(nn.Module):
    """y = x Wᵀ + b with the weights of a linear map. In compiled code it is a sum if x is one vector."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self.weight, self.bias = linear.weight, linear.bias

    def forward(self, x: Tensor) -> Tensor:
        """(…, I) → (…, O)."""
        if not is_single_vector(x):
            return F.linear(x, self.weight, self.bias)
        y = (self.weight * x.reshape(-1)).sum(-1)
        if self.bias is not None:
            y = y + self.bias
        return y.view(*x.shape[:-1], -1)


def is_single_vector(x: Tensor) -> bool:
    """Return whether x is one vector and this code is being compiled."""
    return torch.compiler.is_compiling() and x.numel() == x.shape[-1]


def replace_linears(network: CopiedNetwork, make: Callable[[nn.Linear], nn.Module]) -> CopiedNetwork:
    """Return a copy of a network in which `make` replaces each linear map. It shares all weights with the original."""
    # deepcopy takes the replacements and the shared tensors from the memo.
    memo: dict[int, object] = {id(module): make(module) for module in network.modules() if type(module) is nn.Linear}
    memo |= {id(tensor): tensor for tensor in (*network.parameters(), *network.buffers())}
    return copy.deepcopy(network, memo=memo)
