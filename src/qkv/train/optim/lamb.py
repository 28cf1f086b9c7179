"""LAMB (You et al. 2019): Adam, but the update of each matrix is scaled to the norm of the matrix.

    m ← β₁m + (1−β₁)g      v ← β₂v + (1−β₂)g²      r = m̂/(√v̂ + ε) + λx      x ← x − η · ‖x‖/‖r‖ · r

m̂ and v̂ are bias-corrected, as in Adam. The trust ratio ‖x‖/‖r‖ applies to matrices and embedding tables; it keeps
training stable with batches of tens of thousands of examples. Norms and biases get Adam's update, as in the authors'
code. A bias starts at 0, and an update in proportion to its norm would leave it at 0.
"""

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer


class Lamb(Optimizer):
    """The LAMB optimizer. All state is in tensors (`lr` may be one, too), so that a CUDA graph can capture a step."""

    def __init__(
        self,
        params: Iterable[Any],
        lr: float | Tensor = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-6,
        weight_decay: float = 0.01,
    ) -> None:
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay})

    def initial_state(self, group: dict[str, Any], parameter: Tensor) -> dict[str, Tensor]:
        """Return the state of a parameter before its first step."""
        return moment_state(parameter)

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Update all parameters that have a gradient."""
        for group in self.param_groups:
            beta1, beta2 = group["betas"]
            for x in group["params"]:
                if x.grad is None:
                    continue
                state = self.state[x]
                if not state:
                    state.update(moment_state(x))
                step, m, v = state["step"], state["exp_avg"], state["exp_avg_sq"]
                step += 1
                m.lerp_(x.grad, 1 - beta1)
                v.mul_(beta2).addcmul_(x.grad, x.grad, value=1 - beta2)
                r = (m / (1 - beta1**step)) / ((v / (1 - beta2**step)).sqrt() + group["eps"])
                if group["weight_decay"]:
                    r.add_(x, alpha=group["weight_decay"])
                if x.dim() >= 2:
                    r.mul_(trust_ratio(x, r))
                x.sub_(r * group["lr"])


def trust_ratio(x: Tensor, r: Tensor) -> Tensor:
    """Return ‖x‖/‖r‖, or 1 if either norm is 0."""
    x_norm, r_norm = torch.linalg.vector_norm(x), torch.linalg.vector_norm(r)
    return torch.where((x_norm > 0) & (r_norm > 0), x_norm / r_norm, torch.ones_like(x_norm))


def moment_state(x: Tensor) -> dict[str, Tensor]:
    """Return the state of a parameter before its first step, for LAMB and for Adam."""
    return {
        "step": torch.zeros((), dtype=torch.promote_types(x.dtype, torch.float32), device=x.device),
        "exp_avg": zeros_like(x),
        "exp_avg_sq": zeros_like(x),
    }


def zeros_like(x: Tensor) -> Tensor:
    """Return zeros with the shape, dtype, device and shards of a tensor.

    On the meta device, torch's own function would import a library for symbolic shapes, which takes two seconds.
    """
    return torch.zeros(x.shape, dtype=x.dtype, device="meta") if x.is_meta else torch.zeros_like(x)
