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

from qkv.train.optim.eager import momentum_state

NEWTON_SCHULZ_COEFFICIENTS, NEWTON_SCHULZ_STEPS = (3.4445, -4.7750, 2.0315), 5
"""x ← ax + b(xxᵀ)x + c(xxᵀ)²x, five times, with the coefficients of Jordan's post, as in torch."""


class CombinedOptimizer(Optimizer):
    """Several optimizers in one. It shares parameter groups and state with them."""

    def __init__(self, parts: Sequence[Optimizer]) -> None:
        super().__init__([group for part in parts for group in part.param_groups], {})
        self.parts = list(parts)
        for part in parts:
            part.state = self.state

    def initial_state(self, group: dict[str, Any], parameter: Tensor) -> dict[str, Tensor]:
        """Return the state of a parameter before its first step."""
        owner: Any = next(part for part in self.parts if any(group is own for own in part.param_groups))
        state: dict[str, Tensor] = owner.initial_state(group, parameter)
        return state

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Step all optimizers."""
        for part in self.parts:
            if hasattr(self, "found_inf"):
                part.found_inf, part.grad_scale = self.found_inf, None  # type: ignore[attr-defined]
            part.step()


class Muon(torch.optim.Muon):
    """torch's Muon, with a step that a CUDA graph can capture (torch's own reads the value of the learning rate).

    Matrices of the same shape are updated together: a GPU computes a few batched products much faster than many small
    ones. If `found_inf` is set and is 1, nothing is updated, as in torch's fused optimizers.

    The products are computed in `compute_dtype`. Not every CPU can multiply bfloat16.
    """

    found_inf: Tensor | None = None

    def __init__(
        self,
        params: Iterable[Any],
        lr: float | Tensor,
        weight_decay: float,
        momentum: float = 0.95,
        compute_dtype: torch.dtype = torch.float32,
    ) -> None:
        self.compute_dtype = compute_dtype
        super().__init__(
            params,
            lr=lr,  # type: ignore[arg-type]
            weight_decay=weight_decay,
            momentum=momentum,
            adjust_lr_fn="match_rms_adamw",
        )

    def initial_state(self, group: dict[str, Any], parameter: Tensor) -> dict[str, Tensor]:
        """Return the state of a parameter before its first step."""
        return momentum_state(self, group, parameter)

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Update all parameters that have a gradient."""
        for group in self.param_groups:
            by_shape: dict[tuple[Any, ...], list[Tensor]] = {}
            for parameter in group["params"]:
                if parameter.grad is not None:
                    by_shape.setdefault((parameter.shape, parameter.dtype, parameter.device), []).append(parameter)
            for parameters in by_shape.values():
                self._update(parameters, group)

    def _update(self, parameters: list[Tensor], group: dict[str, Any]) -> None:
        """Update parameters of the same shape."""
        for parameter in parameters:
            if "momentum_buffer" not in self.state[parameter]:
                self.state[parameter]["momentum_buffer"] = torch.zeros_like(parameter)
        buffers = [self.state[parameter]["momentum_buffer"] for parameter in parameters]
        gradients, old_momenta = torch.stack([p.grad for p in parameters if p.grad is not None]), torch.stack(buffers)
        momenta = old_momenta.lerp(gradients, 1 - group["momentum"])
        updates = orthogonalize(gradients.lerp(momenta, group["momentum"]), group["eps"], self.compute_dtype)
        updates = updates.to(momenta.dtype) * (group["lr"] * 0.2 * math.sqrt(max(parameters[0].shape)))
        decay = 1 - group["lr"] * group["weight_decay"]
        if self.found_inf is not None:
            skip = self.found_inf > 0
            momenta = torch.where(skip, old_momenta, momenta)
            updates = torch.where(skip, 0.0, updates)
            decay = torch.where(skip, 1.0, decay)
        if hasattr(parameters[0], "placements"):  # torch cannot copy lists of sharded tensors
            for parameter, buffer, update, momentum in zip(parameters, buffers, updates, momenta, strict=True):
                buffer.copy_(momentum)
                parameter.mul_(decay).sub_(update)
            return
        torch._foreach_copy_(buffers, momenta.unbind())
        torch._foreach_mul_(parameters, decay)
        torch._foreach_sub_(parameters, updates.unbind())


def orthogonalize(matrices: Tensor, eps: float, compute_dtype: torch.dtype = torch.float32) -> Tensor:
    """Return approximately UVᵀ for each matrix USVᵀ of (N, rows, columns), by Newton–Schulz in `compute_dtype`."""
    a, b, c = NEWTON_SCHULZ_COEFFICIENTS
    x = matrices.to(compute_dtype)
    is_tall = x.shape[-2] > x.shape[-1]
    x = x.mT if is_tall else x
    x = x / x.norm(dim=(-2, -1), keepdim=True).clamp(min=eps)
    for _ in range(NEWTON_SCHULZ_STEPS):
        square = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(square, square, square, beta=b, alpha=c), x, beta=a)
    return x.mT if is_tall else x
