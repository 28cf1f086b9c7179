"""Cross-entropy of a linear map's outputs, without holding all logits in memory.

    loss = Σ −log softmax(x Wᵀ + b)[target]

With a large vocabulary the logits are by far the largest tensor of a step. Here they are computed a chunk at a time.
The loss is a scalar, so its gradients for x, W and b are known in the forward pass, up to one factor. They are computed
there, and each chunk of logits is then discarded; the backward pass only multiplies by the factor. Nothing is computed
twice. The reference is `cross_entropy` in `training_module.py`.

N positions with a label, C model width, V outputs
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
"""The module with the Triton kernel, once `load_kernels` has imported it."""
VOCAB_MULTIPLE = 64
"""A GPU multiplies matrices faster if their sizes are multiples of this."""


class FusedCrossEntropy(torch.autograd.Function):
    """x (N, C), weight (V, C), bias (V,) or None, targets (N,) → the summed loss."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        targets: Tensor,
        label_smoothing: float,
        num_chunks: int,
        needs_grad: tuple[bool, bool, bool],
    ) -> Tensor:
        """The loss, and the gradients of x, weight and bias that `needs_grad` asks for."""
        sum_dtype = torch.promote_types(x.dtype, torch.float32)
        dtype = compute_dtype(x)
        padded_weight = pad_vocabulary(weight).to(dtype)
        loss = x.new_zeros((), dtype=sum_dtype)
        grad_x: list[Tensor] = []
        grad_weight: Tensor | None = None
        grad_bias = torch.zeros_like(bias, dtype=sum_dtype) if needs_grad[2] and bias is not None else None
        for chunk, target in zip(x.to(dtype).chunk(num_chunks), targets.chunk(num_chunks), strict=True):
            logits = F.linear(chunk, padded_weight)
            if has_in_place_kernel(logits):
                losses = triton_kernels.cross_entropy_in_place(logits, bias, target, label_smoothing, len(weight))
                chunk_loss, grad_logits = losses.sum(), logits
            else:
                chunk_loss, grad_logits = _loss_and_gradient(
                    logits.to(sum_dtype), bias, target, label_smoothing, len(weight)
                )
            loss = loss + chunk_loss
            if grad_bias is not None:
                grad_bias += grad_logits[:, : len(weight)].sum(0, dtype=sum_dtype)
            grad_logits = grad_logits.to(dtype)
            if needs_grad[0]:
                grad_x.append(grad_logits @ padded_weight)
            if needs_grad[1]:
                part = _weight_gradient(grad_logits.T, chunk)
                if grad_weight is None:
                    grad_weight = part.to(sum_dtype) if num_chunks > 1 else part
                else:
                    grad_weight += part
        grad_weight = None if grad_weight is None else grad_weight[: len(weight)]
        ctx.save_for_backward(torch.cat(grad_x) if grad_x else None, grad_weight, grad_bias)
        ctx.dtypes = (x.dtype, weight.dtype, None if bias is None else bias.dtype)
        return loss

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_loss: Tensor) -> tuple[Any, ...]:
        """The saved gradients, times the gradient of the loss."""
        saved = zip(ctx.saved_tensors, ctx.dtypes, strict=True)
        grads = (None if t is None else (t.to(grad_loss.dtype) * grad_loss).to(dtype) for t, dtype in saved)
        return *grads, None, None, None, None


def compute_dtype(x: Tensor) -> torch.dtype:
    """The dtype of matrix products: autocast's if it is on."""
    return torch.get_autocast_dtype(x.device.type) if torch.is_autocast_enabled(x.device.type) else x.dtype


def has_in_place_kernel(logits: Tensor) -> bool:
    """Whether the Triton kernel can replace these logits by their gradient."""
    return triton_kernels is not None and logits.is_cuda and logits.dtype != torch.float64


def load_kernels() -> None:
    """Import the Triton kernel if it can run. Call it before compiling: the compiler cannot trace the import."""
    global triton_kernels
    if has_triton():
        triton_kernels = import_module("qkv.train.loss.fused_cross_entropy_triton")


def _weight_gradient(a: Tensor, b: Tensor) -> Tensor:
    """Return a @ b. For float16, compute it in float32: the sum over positions could overflow.

    The loss scale cannot prevent this, because it is applied only later.
    """
    if a.dtype != torch.float16:
        return a @ b
    with torch.autocast(a.device.type, enabled=False):
        return a.float() @ b.float()


def pad_vocabulary(weight: Tensor) -> Tensor:
    """On a GPU, the weight with rows of zeros up to a multiple of `VOCAB_MULTIPLE`."""
    return F.pad(weight, (0, 0, 0, -len(weight) % VOCAB_MULTIPLE)) if weight.is_cuda else weight


def _loss_and_gradient(
    logits: Tensor, bias: Tensor | None, targets: Tensor, label_smoothing: float, outputs: int
) -> tuple[Tensor, Tensor]:
    """The summed loss of logits (N, ≥ V), and its gradient: probabilities minus the target distribution."""
    if bias is not None:
        logits[:, :outputs] += bias
    logits[:, outputs:] = float("-inf")  # the columns of padding
    is_label = targets != IGNORE_INDEX
    index = torch.where(is_label, targets, 0)[:, None]
    grad = logits.softmax(-1)
    max_logit = logits.amax(-1)
    # The largest log probability, −log Σ exp(x − max). Smaller probabilities may underflow to 0, whose log is −∞.
    max_log_prob = grad.amax(-1).log()
    log_prob = logits.gather(1, index)[:, 0] - max_logit + max_log_prob
    if label_smoothing:
        mean_log_prob = logits[:, :outputs].mean(-1) - max_logit + max_log_prob
        log_prob = (1 - label_smoothing) * log_prob + label_smoothing * mean_log_prob
        grad[:, :outputs] -= label_smoothing / outputs
    grad.scatter_add_(1, index, torch.full_like(index, label_smoothing - 1.0, dtype=grad.dtype))
    return -torch.where(is_label, log_prob, 0.0).sum(), grad.mul_(is_label[:, None])


def fused_cross_entropy(
    x: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor, label_smoothing: float, num_chunks: int
) -> Tensor:
    """The summed cross-entropy of x Wᵀ + b, with at most ⌈N / num_chunks⌉ rows of logits in memory."""
    needs_grad = tuple(torch.is_grad_enabled() and t is not None and t.requires_grad for t in (x, weight, bias))
    arguments = (x, weight, bias, targets, label_smoothing, num_chunks, needs_grad)
    loss: Tensor = FusedCrossEntropy.apply(*arguments)  # type: ignore[no-untyped-call]
    return loss
