"""Half-precision copies of the weights, all made at once.

Autocast turns each matrix into bfloat16 where it is used, and its gradient back into float32 where that comes out: on
a GPU two small kernels for every matrix and every bias, hundreds in a step. Here all copies are made by a few kernels
before the network runs, and all gradients are widened by a few after it. The numbers are the same, bit for bit.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.func import functional_call

from qkv.train.learner import Learner


class HalfWeights:
    """Runs a learner with half-precision copies of what its linear maps hold."""

    def __init__(self, learner: Learner, kind: torch.dtype) -> None:
        self.learner, self.kind = learner, kind
        self.weights = half_weights(learner)

    def __call__(self, *args: Any) -> Tensor:
        halves = Halve.apply(self.kind, *self.weights.values())  # type: ignore[no-untyped-call]
        loss: Tensor = functional_call(self.learner, dict(zip(self.weights, halves, strict=True)), args)
        return loss


def half_weights(learner: Learner) -> dict[str, nn.Parameter]:
    """The parameters, by name, that are read by linear maps alone and are trained.

    What reads the vectors out at the end is not among them: it may be the embedding, which is read as it is, and its
    loss makes a copy of its own.
    """
    out = learner.network.head.out
    return {
        f"{path}.{name}": parameter
        for path, module in learner.named_modules()
        if type(module) is nn.Linear and module is not out
        for name, parameter in module.named_parameters()
        if parameter.requires_grad and parameter.dtype == torch.float32
    }


class Halve(torch.autograd.Function):
    """Weights → the same in a narrower type; their gradients come back in the weights' own."""

    @staticmethod
    def forward(ctx: Any, kind: torch.dtype, *weights: Tensor) -> tuple[Tensor, ...]:
        ctx.set_materialize_grads(False)  # what a batch does not use has no gradient, rather than one of zeros
        return tuple(copies(weights, kind))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Any, ...]:
        wide = iter(copies([g for g in gradients if g is not None], torch.float32))
        return (None, *(None if g is None else next(wide) for g in gradients))


def copies(tensors: Sequence[Tensor], kind: torch.dtype) -> list[Tensor]:
    """All of them in another type, by as few kernels as there can be."""
    made = [torch.empty_like(tensor, dtype=kind) for tensor in tensors]
    if made:
        torch._foreach_copy_(made, list(tensors))
    return made
