"""Attention for many short texts on a CPU: batched products, for which torch's own kernel takes half as long again.

As one function with a backward pass of its own, so that queries, keys and values are laid out once for both passes.

B batch, T queries, S keys, H heads, D head width
"""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

MIN_VECTORISED_KEYS = 16
"""Fewer keys than this, and torch's softmax goes number by number."""


def is_short(q: Tensor, k: Tensor) -> bool:
    """Whether these (B, H, T, D) and (B, H, S, D) are many short texts on a CPU."""
    if q.device.type != "cpu" or torch.compiler.is_compiling():  # which would compile one for each side of the line
        return False
    many = q.shape[0] * q.shape[1] >= 64 and max(q.shape[2], k.shape[2]) <= 64 and k.shape[2] > 0
    alike = q.shape[:2] == k.shape[:2] and q.dtype == k.dtype and q.dtype in (torch.float32, torch.float64)
    return many and alike and not torch.is_autocast_enabled("cpu")


def short_attention(q: Tensor, k: Tensor, v: Tensor, additive_mask: Tensor | None, scale: float) -> Tensor:
    """softmax(QKᵀ·scale + added) V, with `added` (…, T, S): the mask as a sum."""
    apart = torch._C._are_functorch_transforms_active() or (additive_mask is not None and additive_mask.requires_grad)
    if apart or not torch.is_grad_enabled():
        out = (q * scale) @ k.transpose(-2, -1)
        return (out if additive_mask is None else out + additive_mask).softmax(dim=-1) @ v
    answer: Tensor = ShortAttention.apply(q, k, v, additive_mask, scale)  # type: ignore[no-untyped-call]
    return answer


class ShortAttention(torch.autograd.Function):
    """The same, remembering what its backward pass reads as that reads it."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, additive_mask: Tensor | None, scale: float) -> Tensor:
        many, queries, width = q.shape[0] * q.shape[1], q.shape[2], q.shape[3]
        laid = torch.mul(q, scale, out=q.new_empty(q.shape)).view(many, queries, width)  # scaled and laid out at once
        keys, values = k.reshape(many, -1, width), v.reshape(many, -1, width)
        scores = torch.bmm(laid, keys.transpose(1, 2))  # (B·H, T, S)
        if additive_mask is not None:
            scores.view(*q.shape[:2], queries, -1).add_(additive_mask)
        pattern = softmax_in_place(scores) if scores.shape[-1] < MIN_VECTORISED_KEYS else scores.softmax(dim=-1)
        ctx.save_for_backward(laid, keys, values, pattern)
        ctx.scale = scale
        return torch.bmm(pattern, values).view(q.shape)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_out: Tensor) -> tuple[Any, ...]:
        laid, keys, values, pattern = ctx.saved_tensors
        rows, heads, _, width = grad_out.shape
        grad_out = grad_out.reshape(laid.shape)
        to_scores = torch._softmax_backward_data(
            torch.bmm(grad_out, values.transpose(1, 2)), pattern, -1, pattern.dtype
        )
        to_q = torch.bmm(to_scores, keys).mul_(ctx.scale)
        to_k = torch.bmm(to_scores.transpose(1, 2), laid)
        to_v = torch.bmm(pattern.transpose(1, 2), grad_out)
        return *(t.view(rows, heads, -1, width) for t in (to_q, to_k, to_v)), None, None


def softmax_in_place(scores: Tensor) -> Tensor:
    """Over the last axis, in which each row has a number that is not −∞."""
    scores.sub_(scores.amax(dim=-1, keepdim=True)).exp_()
    return scores.div_(scores.sum(dim=-1, keepdim=True))
