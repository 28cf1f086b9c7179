"""Linear maps for compiled steps of one sequence, where every product is of a matrix and a vector.

Written as a sum, such a product is compiled into one kernel with its neighbours: the norm before it, the bias, the
gate, the residual after it. A library call for matrix products would prevent this fusion. Only the compiler benefits:
in eager mode the sum would write the whole product to memory first.

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
    """y = x Wᵀ + b with the weights of a linear map, computed as a sum if x is one vector and the compiler runs."""

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
    """Whether x is one vector, and this code is being compiled."""
    return torch.compiler.is_compiling() and x.numel() == x.shape[-1]


def replace_linears(network: CopiedNetwork, make: Callable[[nn.Linear], nn.Module]) -> CopiedNetwork:
    """A copy of a network with other modules in place of its linear maps. It shares all weights with the original.

    A deep copy whose memo already holds the replacements and the tensors.
    """
    memo: dict[int, object] = {id(module): make(module) for module in network.modules() if type(module) is nn.Linear}
    memo |= {id(tensor): tensor for tensor in (*network.parameters(), *network.buffers())}
    return copy.deepcopy(network, memo=memo)
