"""Muon for the matrices of the blocks and AdamW for the rest, as one optimizer.

Muon (Jordan 2024) orthogonalizes the momentum of a matrix, so that the weights change equally fast in all directions.
Its update is scaled to the size of AdamW's (torch's "match_rms_adamw", Liu et al. 2025), so that both use one `lr`.
"""

import math
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

NEWTON_SCHULZ_COEFFICIENTS, NEWTON_SCHULZ_STEPS = (3.4445, -4.7750, 2.0315), 5
"""x ← ax + b(xxᵀ)x + c(xxᵀ)²x, five times, with the coefficients of Jordan's post, as in torch."""


class CombinedOptimizer(Optimizer):
    """Several optimizers in one. It shares parameter groups and state with them."""

    def __init__(self, parts: Sequence[Optimizer]) -> None:
        super().__init__([group for part in parts for group in part.param_groups], {})
        self.parts = list(parts)
        for part in parts:
            part.state = self.state

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Step all optimizers."""
        for part in self.parts:
            part.step()


class Muon(torch.optim.Muon):
    """torch's Muon, with a step that a CUDA graph can capture (torch's own reads the value of the learning rate).

    On a CPU it computes in float32. There, bfloat16 is slower, and crashes on CPUs that wrongly report support for it.
    """

    def __init__(self, params: Iterable[Any], lr: float | Tensor, weight_decay: float, momentum: float = 0.95) -> None:
        super().__init__(
            params,
            lr=lr,  # type: ignore[arg-type]
            weight_decay=weight_decay,
            momentum=momentum,
            adjust_lr_fn="match_rms_adamw",
        )

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Update all parameters that have a gradient."""
        for group in self.param_groups:
            lr, momentum = group["lr"], group["momentum"]
            for x in group["params"]:
                if x.grad is None:
                    continue
                state = self.state[x]
                if "momentum_buffer" not in state:
                    state["momentum_buffer"] = torch.zeros_like(x)
                momentum_buffer = state["momentum_buffer"]
                momentum_buffer.lerp_(x.grad, 1 - momentum)
                compute_dtype = torch.float32 if x.device.type == "cpu" else torch.bfloat16
                update = orthogonalize(x.grad.lerp(momentum_buffer, momentum), group["eps"], compute_dtype)
                x.mul_(1 - lr * group["weight_decay"])
                x.sub_(update.to(x.dtype) * (lr * 0.2 * math.sqrt(max(x.shape))))


def orthogonalize(matrix: Tensor, eps: float, compute_dtype: torch.dtype = torch.float32) -> Tensor:
    """Return approximately UVᵀ for a matrix USVᵀ, by Newton–Schulz iterations in `compute_dtype`."""
    a, b, c = NEWTON_SCHULZ_COEFFICIENTS
    x = matrix.to(compute_dtype)
    is_tall = matrix.shape[0] > matrix.shape[1]
    x = x.T if is_tall else x
    x = x / x.norm().clamp(min=eps)
    for _ in range(NEWTON_SCHULZ_STEPS):
        square = x @ x.T
        x = torch.addmm(x, torch.addmm(square, square, square, beta=b, alpha=c), x, beta=a)
    return x.T if is_tall else x
