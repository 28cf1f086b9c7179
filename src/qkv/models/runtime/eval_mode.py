"""Run a network for its results, not for training."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn


@contextmanager
def eval_mode(network: nn.Module) -> Iterator[None]:
    """Inside, the network is in evaluation mode and computes no gradients. Afterwards each module has its old mode."""
    training = [module for module in network.modules() if module.training]
    network.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        for module in training:
            module.training = True
