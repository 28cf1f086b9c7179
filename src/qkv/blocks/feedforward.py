"""The position-wise feed-forward network (MLP), which usually has most of a block's parameters.

    plain:  down(f(up(x)))                         (2017: f = ReLU, 4 × wider)
    gated:  down(f(gate(x)) · value(x))            (2020: SwiGLU and its relatives)

f may be ReLU² (So et al. 2021), the square of ReLU.

In a gated network, `up` contains the matrices of gate and value, in this order: one matrix product computes both.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from qkv.blocks.config import StackConfig
from qkv.blocks.dropout import Dropout, is_transformed
from qkv.blocks.tap import LayerTap


def _gelu_tanh(x: Tensor) -> Tensor:
    return F.gelu(x, approximate="tanh")


def _relu2(x: Tensor) -> Tensor:
    return F.relu(x).square()


def _quick_gelu(x: Tensor) -> Tensor:
    """The approximation of GELU in CLIP."""
    return x * torch.sigmoid(1.702 * x)


ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": F.relu,
    "relu2": _relu2,
    "gelu": F.gelu,
    "gelu_tanh": _gelu_tanh,
    "quick_gelu": _quick_gelu,
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
        self.dropout = Dropout(config.ffn_dropout)

    @property
    def has_own_activation(self) -> bool:
        """Whether `activation` has been replaced. Kernels know it by its name, so they leave this module to torch."""
        return self.activation is not ACTIVATIONS[self.activation_name]

    def forward(self, x: Tensor, tap: LayerTap | None = None) -> Tensor:
        """x (B, T, C) → (B, T, C)."""
        h = None
        if self.fused is not None and self.training and tap is None and not self.has_own_activation:
            h = self.fused(self.kind, self.up, x)
        out: Tensor = self.down(self.dropout(self._activated(x, tap) if h is None else h))
        return out

    def _activated(self, x: Tensor, tap: LayerTap | None) -> Tensor:
        h: Tensor = self.up(x)  # (B, T, F), or (B, T, 2F) if gated
        if tap:
            h = tap("mlp_pre", h)
        if self.gated:
            h = apply_gate(h, self.activation)
        else:
            h = self.activation(h)
        return tap("mlp_post", h) if tap else h


def apply_gate(h: Tensor, activation: Callable[[Tensor], Tensor]) -> Tensor:
    """h (…, 2F), which holds gate and value → f(gate) · value, (…, F)."""
    on_cpu = h.device.type == "cpu" and not torch.compiler.is_compiling()
    if on_cpu and activation is F.silu and h.requires_grad and torch.is_grad_enabled() and not is_transformed():
        out: Tensor = CpuSiluGate.apply(h)  # type: ignore[no-untyped-call]
        return out
    gate, value = h.chunk(2, dim=-1)
    return activation(gate) * value


class CpuSiluGate(torch.autograd.Function):
    """silu(gate) · value. Its backward pass writes both gradients into one tensor; autograd would copy them there."""

    @staticmethod
    def forward(ctx: Any, h: Tensor) -> Tensor:
        """h (…, 2F) → (…, F)."""
        gate, value = h.chunk(2, dim=-1)
        active = F.silu(gate)
        ctx.save_for_backward(h, active)
        return active * value

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        """The gradient of h."""
        h, active = ctx.saved_tensors
        gate, value = h.chunk(2, dim=-1)
        grad_h = torch.empty_like(h)
        grad_gate, grad_value = grad_h.chunk(2, dim=-1)
        torch.mul(grad, active, out=grad_value)
        torch.ops.aten.silu_backward.grad_input(grad * value, gate, grad_input=grad_gate)
        return grad_h
