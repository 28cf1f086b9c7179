"""Cross-entropy of a linear map's outputs, without ever holding all of them.

    loss = Σ −log softmax(x Wᵀ + b)[target]

With a large vocabulary the logits are by far the largest tensor of a step. Here they are made a part at a time, and as
the loss is where a gradient begins, each part's gradient is known at once: what goes back to x, W and b is computed
beside the loss, and the logits are thrown away. Nothing is computed twice. The reference is `learner.cross_entropy`.

N places with a label, C width, V outputs
"""

from importlib import import_module
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from qkv.blocks.kernels.gpu import has_triton
from qkv.data.objectives import IGNORE_INDEX

triton_kernels: Any = None
"""The module with the kernel for GPUs, once it is loaded."""
VOCAB_MULTIPLE = 64
"""A GPU multiplies matrices whose sizes are multiples of this faster."""


class FusedCrossEntropy(torch.autograd.Function):
    """x (N, C), weight (V, C), bias (V,) or None, targets (N,) → the summed loss."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        targets: Tensor,
        smoothing: float,
        num_chunks: int,
        needs_grad: tuple[bool, bool, bool],
    ) -> Tensor:
        exact = torch.promote_types(x.dtype, torch.float32)
        kind = compute_dtype(x)
        even = pad_vocabulary(weight).to(kind)
        loss = x.new_zeros((), dtype=exact)
        to_x: list[Tensor] = []
        to_weight: Tensor | None = None
        to_bias = torch.zeros_like(bias, dtype=exact) if needs_grad[2] and bias is not None else None
        for some, target in zip(x.to(kind).chunk(num_chunks), targets.chunk(num_chunks), strict=True):
            logits = F.linear(some, even)
            if has_in_place_kernel(logits):
                more = triton_kernels.cross_entropy_in_place(logits, bias, target, smoothing, len(weight)).sum()
                back = logits
            else:
                more, back = _loss_and_gradient(logits.to(exact), bias, target, smoothing, len(weight))
            loss = loss + more
            if to_bias is not None:
                to_bias += back[:, : len(weight)].sum(0, dtype=exact)
            back = back.to(kind)
            if needs_grad[0]:
                to_x.append(back @ even)
            if needs_grad[1]:
                share = _weight_gradient(back.T, some)
                share = share.to(exact) if num_chunks > 1 else share
                to_weight = share if to_weight is None else to_weight + share
        to_weight = None if to_weight is None else to_weight[: len(weight)]
        ctx.save_for_backward(torch.cat(to_x) if to_x else None, to_weight, to_bias)
        ctx.kinds = (x.dtype, weight.dtype, None if bias is None else bias.dtype)
        return loss

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_loss: Tensor) -> tuple[Any, ...]:
        kept = zip(ctx.saved_tensors, ctx.kinds, strict=True)
        return (
            *(None if t is None else (t.to(grad_loss.dtype) * grad_loss).to(kind) for t, kind in kept),
            None,
            None,
            None,
            None,
        )


def compute_dtype(x: Tensor) -> torch.dtype:
    """The type of number that products are in: autocast's, where it is on."""
    return torch.get_autocast_dtype(x.device.type) if torch.is_autocast_enabled(x.device.type) else x.dtype


def has_in_place_kernel(logits: Tensor) -> bool:
    """Whether there is a kernel that turns these logits into their gradient where they are."""
    return triton_kernels is not None and logits.is_cuda and logits.dtype != torch.float64


def load_kernels() -> None:
    """Load the kernel, where it can run. Before a learner is compiled: the compiler cannot look into an import."""
    global triton_kernels
    if has_triton():
        triton_kernels = import_module("qkv.train.loss.fused_cross_entropy_triton")


def _weight_gradient(a: Tensor, b: Tensor) -> Tensor:
    """A sum over many places, which float16 could not hold: nothing has scaled it yet."""
    if a.dtype != torch.float16:
        return a @ b
    with torch.autocast(a.device.type, enabled=False):
        return a.float() @ b.float()


def pad_vocabulary(weight: Tensor) -> Tensor:
    """With rows of zeros, where that makes products faster."""
    return F.pad(weight, (0, 0, 0, -len(weight) % VOCAB_MULTIPLE)) if weight.is_cuda else weight


def _loss_and_gradient(
    logits: Tensor, bias: Tensor | None, targets: Tensor, smoothing: float, outputs: int
) -> tuple[Tensor, Tensor]:
    """The summed loss of these logits (N, ≥ V), and its gradient: probabilities less what they should be."""
    if bias is not None:
        logits[:, :outputs] += bias
    logits[:, outputs:] = float("-inf")  # what only rounds up the matrix
    counts = targets != IGNORE_INDEX
    index = torch.where(counts, targets, 0)[:, None]
    back = logits.softmax(-1)
    top = logits.amax(-1)
    level = back.amax(-1).log()  # of the largest, −log Σ exp(x − top): others may have come out as 0
    said = logits.gather(1, index)[:, 0] - top + level
    if smoothing:
        said = (1 - smoothing) * said + smoothing * (logits[:, :outputs].mean(-1) - top + level)
        back[:, :outputs] -= smoothing / outputs
    back.scatter_add_(1, index, torch.full_like(index, smoothing - 1.0, dtype=back.dtype))
    return -torch.where(counts, said, 0.0).sum(), back.mul_(counts[:, None])


def fused_cross_entropy(
    x: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor, smoothing: float, num_chunks: int
) -> Tensor:
    """The summed cross-entropy of x Wᵀ + b, with at most ⌈N / parts⌉ rows of logits at a time."""
    learns = torch.is_grad_enabled()
    wanted = tuple(learns and t is not None and t.requires_grad for t in (x, weight, bias))
    loss: Tensor = FusedCrossEntropy.apply(x, weight, bias, targets, smoothing, num_chunks, wanted)  # type: ignore[no-untyped-call]
    return loss
