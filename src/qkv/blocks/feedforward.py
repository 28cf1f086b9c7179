"""The position-wise feed-forward network (MLP), which usually has most of a block's parameters.

    plain:  down(f(up(x)))                         (2017: f = ReLU, 4 × wider)
    gated:  down(f(gate(x)) · value(x))            (2020: SwiGLU and its relatives)

In a gated network, `up` contains the matrices of gate and value, in this order: one matrix product computes both.
"""

from collections.abc import Callable

from torch import Tensor, nn
from torch.nn import functional as F

from qkv.blocks.config import StackConfig
from qkv.blocks.tap import LayerTap


def _gelu_tanh(x: Tensor) -> Tensor:
    return F.gelu(x, approximate="tanh")


ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": F.relu,
    "gelu": F.gelu,
    "gelu_tanh": _gelu_tanh,
    "silu": F.silu,
    "tanh": F.tanh,
}


class FeedForward(nn.Module):
    """Two linear maps with an activation between them, applied to each token separately."""

    def __init__(self, config: StackConfig, *, activation: str, gated: bool = False) -> None:
        super().__init__()
        bias = config.bias == "all"
        self.kind, self.gated, self.activation_name = config.feedforward, gated, activation
        self.activation = ACTIVATIONS[activation]
        # Training may install a fused function for `up` and the activation (kernels/linear_gelu.py). The function
        # returns None for an input that it does not support.
        self.fused: Callable[[str, nn.Module, Tensor], Tensor | None] | None = None
        self.up = nn.Linear(config.width, config.ffn_width * (2 if gated else 1), bias=bias)
        self.down = nn.Linear(config.ffn_width, config.width, bias=bias)
        self.dropout = nn.Dropout(config.ffn_dropout)

    def forward(self, x: Tensor, tap: LayerTap | None = None) -> Tensor:
        """x (B, T, C) → (B, T, C)."""
        h = None
        if self.fused is not None and self.training and tap is None:
            h = self.fused(self.kind, self.up, x)
        out: Tensor = self.down(self.dropout(self._activated(x, tap) if h is None else h))
        return out

    def _activated(self, x: Tensor, tap: LayerTap | None) -> Tensor:
        h: Tensor = self.up(x)  # (B, T, F), or (B, T, 2F) if gated
        if tap:
            h = tap("mlp_pre", h)
        if self.gated:
            gate, value = h.chunk(2, dim=-1)
            h = self.activation(gate) * value
        else:
            h = self.activation(h)
        return tap("mlp_post", h) if tap else h
