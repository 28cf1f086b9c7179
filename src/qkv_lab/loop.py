"""A plain training loop, for networks that no recipe describes. All other experiments train with `Experiment.train`."""

from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn

WARMUP_STEPS = 50


def training_steps(network: nn.Module, compute_loss: Callable[[], Tensor], steps: int, lr: float) -> Iterator[int]:
    """Train with AdamW, a warm-up and a linear decay to 0, and yield the number of each finished step."""
    optimizer = torch.optim.AdamW(network.parameters(), lr=lr)
    for step in range(steps):
        network.train()
        for group in optimizer.param_groups:
            group["lr"] = lr * min((step + 1) / WARMUP_STEPS, 1.0) * (1 - step / steps)
        optimizer.zero_grad()
        compute_loss().backward()
        nn.utils.clip_grad_norm_(network.parameters(), max_norm=1.0)
        optimizer.step()
        network.eval()
        yield step + 1
