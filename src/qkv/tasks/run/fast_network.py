"""Choose the network that computes the hidden states of many texts on a CPU: the network itself, or a copy in bfloat16.

The choice is measured, because bfloat16 is several times as fast on some processors and slower on others. Few texts are
always computed in the dtype of the weights. bfloat16 has 8 bits of precision: `docs/decoding.md` has the measured
differences of vectors and probabilities.
"""

import time
from collections.abc import Callable
from typing import Any

import torch

from qkv.models import Network
from qkv.models.bfloat16 import bfloat16_copy, has_bfloat16_instructions

MIN_TOKENS = 8192
"""With fewer tokens, copying the weights and measuring take longer than they save."""
MIN_WIDTH = 256
"""Products of narrower networks gain nothing."""
MIN_SPEEDUP = 1.2
"""bfloat16 rounds more, so it must be at least this much faster."""
_speedups: dict[tuple[Any, ...], float] = {}
"""The measured speedup of bfloat16 for networks of some sizes and a number of threads."""


def choose_fast_network(network: Network, num_tokens: int, run: Callable[[Network], Any]) -> Network:
    """Return the network, or a faster copy. `run(network)` computes a typical batch."""
    if not may_gain(network, num_tokens):
        return network
    fast = bfloat16_copy(network)
    sizes = [(stack.width, stack.ffn_width, stack.layers) for stack in network.config.stacks.values()]
    key = (*sizes, torch.get_num_threads())
    if key not in _speedups:
        _speedups[key] = min_seconds(run, network) / min_seconds(run, fast)
    return fast if _speedups[key] >= MIN_SPEEDUP else network


def may_gain(network: Network, num_tokens: int) -> bool:
    """Whether bfloat16 may be faster: many tokens, large float32 products, a CPU that has instructions for it."""
    config = network.config
    return (
        network.device.type == "cpu"
        and num_tokens >= MIN_TOKENS
        and config.has_blocks
        and max(stack.width for stack in config.stacks.values()) >= MIN_WIDTH
        and all(parameter.dtype == torch.float32 for parameter in network.parameters())
        and has_bfloat16_instructions()
    )


def min_seconds(run: Callable[[Network], Any], network: Network) -> float:
    """The seconds of the faster one of two calls."""
    seconds = []
    for _ in range(2):
        start = time.perf_counter()
        run(network)
        seconds.append(time.perf_counter() - start)
    return min(seconds)
