"""Dropout: in training, each number is set to 0 with probability p, and the others are divided by 1 − p.

On a CPU, drawing random numbers costs more than anything else in torch's dropout. Here 16 random bits decide about each
number, so 64 bits decide about four. The probability is p rounded to a multiple of 2⁻¹⁶.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

BITS = 16


def dropout_multiplier(like: Tensor, p: float) -> Tensor:
    """Return 0 with probability p, else 1/(1 − p), in the shape and the dtype of a CPU tensor."""
    count = like.numel()
    bits = torch.empty(-(-count * BITS // 64), dtype=torch.int64).random_(-(2**63), None)
    threshold = round(p * 2**BITS) - 2 ** (BITS - 1)  # of 2^16 values from −2^15 on, the lowest p · 2^16 drop out
    if threshold > 2 ** (BITS - 1) - 1:
        return torch.zeros_like(like)
    keep = bits.view(torch.int16)[:count].ge(threshold).view(like.shape)
    return keep.to(like.dtype).mul_(1.0 / (1.0 - p))


class CpuDropout(torch.autograd.Function):
    """Dropout that saves its multiplier."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, p: float) -> Tensor:
        """x of any shape → x, with some numbers dropped."""
        multiplier = dropout_multiplier(x, p)
        ctx.save_for_backward(multiplier)
        return x * multiplier

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        """The gradient, dropped at the same numbers."""
        (multiplier,) = ctx.saved_tensors
        return grad * multiplier, None


class Dropout(nn.Dropout):
    """Dropout with cheap random numbers on a CPU; on other devices, torch's dropout."""

    def forward(self, x: Tensor) -> Tensor:
        """x of any shape → x, with some numbers dropped if the module is in training mode."""
        if not self.training or self.p == 0.0:
            return x
        if x.device.type != "cpu" or torch.compiler.is_compiling() or is_transformed():
            return F.dropout(x, self.p)
        out: Tensor = CpuDropout.apply(x, self.p)  # type: ignore[no-untyped-call]
        return out


def drop_sequences(x: Tensor, p: float) -> Tensor:
    """Stochastic depth (Huang et al. 2016): set x (B, …) to 0 for a sequence with probability p, else divide by 1 − p.

    In the last block, x may be the positions with a label, (N, C). Then each position is a sequence.
    """
    if not p:
        return x
    keep = torch.rand(len(x), *[1] * (x.dim() - 1), device=x.device) >= p
    return x * keep.to(x.dtype) / (1.0 - p)


def is_transformed() -> bool:
    """Whether `torch.func` transforms the computation. Custom autograd functions do not support this."""
    active: bool = torch._C._are_functorch_transforms_active()
    return active
