"""A small stack config, and small stacks, for the tests of the parts."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from qkv.blocks import Stack, StackConfig, initialise


def make_config(**choices: Any) -> StackConfig:
    """A small config; weights start large enough for every part to matter."""
    size = {
        "vocab_size": 40,
        "width": 16,
        "layers": 2,
        "heads": 4,
        "ffn_width": 24,
        "max_positions": 64,
        "init_std": 0.3,
    }
    return StackConfig(**(size | choices))


@pytest.fixture
def small() -> Callable[..., StackConfig]:
    return make_config


@pytest.fixture
def make_stack() -> Callable[..., Stack]:
    """A stack in float64, with norms and biases moved off their start so that leaving one out shows."""

    def make(causal: bool = False, cross: bool = False, seed: int = 0, **choices: Any) -> Stack:
        torch.manual_seed(seed)
        config = make_config(**choices)
        stack = Stack(config, name="decoder" if causal else "encoder", causal=causal, cross=cross).double()
        initialise(stack, config)
        with torch.no_grad():
            for parameter in stack.parameters():
                if parameter.dim() == 1:
                    parameter.add_(0.2 * torch.randn_like(parameter))
        return stack.eval()

    return make
