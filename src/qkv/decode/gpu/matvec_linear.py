"""Linear maps for compiled steps of one row, where a product of matrices is a product of a matrix and a vector.

Written as a sum the compiler makes it one kernel with all that stands around it: the norm before, the bias, the gate,
the residual after. A call to a library for products of matrices is a wall between those. Only for the compiler: run
plainly, the sum would first write the whole product to memory.

I inputs, O outputs
"""

import copy
from collections.abc import Callable
from typing import TypeVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

AnyNetwork = TypeVar("AnyNetwork", bound=nn.Module)


class MatvecLinear(nn.Module):
    """y = x Wᵀ + b, as a sum where x is one vector and the compiler is at work; weights are those of the original."""

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
    """Whether it is one vector, and the compiler is at work."""
    return torch.compiler.is_compiling() and x.numel() == x.shape[-1]


def replace_linears(network: AnyNetwork, make: Callable[[nn.Linear], nn.Module], *, share: bool = True) -> AnyNetwork:
    """A copy of a network with other modules in place of its linear maps; it may share all other weights with it.

    A deep copy that finds what it is not to copy already copied.
    """
    memo: dict[int, object] = {id(module): make(module) for module in network.modules() if type(module) is nn.Linear}
    if share:
        memo |= {id(tensor): tensor for tensor in (*network.parameters(), *network.buffers())}
    twin: AnyNetwork = copy.deepcopy(network, memo=memo)
    return twin
