"""One sequence on a CPU at every precision of the weights: decoding and prefill against the limits.

    float32, bfloat16      all weights and all arithmetic
    int8, int4             the linear maps are quantized (`decode/cpu/quantize.py`)

A decoding step of one sequence reads all weights, so its limit is the memory bandwidth divided by their size.
"""

import copy
from collections.abc import Sequence
from typing import Any

import torch

from qkv.decode import quantize
from qkv.models import Network
from qkv.models.bfloat16 import supports_bfloat16
from qkv.models.runtime import free_memory
from qkv_bench.throughput import BenchProgress, BenchResult, Precision, PrecisionBench, measure_one_sequence

WEIGHT_BITS: dict[Precision, int] = {"float32": 32, "bfloat16": 16, "int8": 8, "int4": 5}
"""The precisions that are measured, and the bits of a weight in memory."""


def measure_precisions(
    network: Network, result: BenchResult, seconds: float, report: BenchProgress | None = None
) -> None:
    """Measure a network on a CPU at each precision in about `seconds`, and add the measurements to `result`."""
    for number, precision in enumerate(WEIGHT_BITS):
        if report is not None:
            report(f"weights in {precision}", 100 * number // len(WEIGHT_BITS), 100)
        reason = _reason_against(network, precision)
        if reason:
            result.notes.append(f"{precision} was left out: {reason}")
            continue
        one = measure_one_sequence(
            convert_weights(network, precision),
            precision=precision if precision == "int8" or precision == "int4" else None,
            seconds=seconds / len(WEIGHT_BITS),
        )
        decode, prefill = one.points_of_kind("decode")[0], one.points_of_kind("prefill")[0]
        result.precisions.append(PrecisionBench(precision, one.weight_bytes, decode, prefill))


def can_measure_precisions(network: Network) -> bool:
    """Whether a network generates text, is on a CPU and is not quantized."""
    tensors: Sequence[torch.Tensor] = list(network.parameters())
    return network.generates and all(tensor.device.type == "cpu" and tensor.numel() > 0 for tensor in tensors)


def convert_weights(network: Network, precision: Precision) -> Network:
    """Return the network with its weights in a precision; itself, if they are in that precision already."""
    if precision == "int8" or precision == "int4":
        any_network: Any = network  # Any, because the type checker does not know that the copy has the same class
        quantized: Network = quantize(any_network, precision)
        return quantized
    dtype: torch.dtype = getattr(torch, precision)
    if all(parameter.dtype == dtype for parameter in network.parameters()):
        return network
    return copy.deepcopy(network).to(dtype)


def _reason_against(network: Network, precision: Precision) -> str | None:
    """Return why a precision cannot be measured, or None."""
    if not network.config.has_blocks and precision in ("int8", "int4"):
        return f"it is for Transformers, and this model has {network.config.stack.block.upper()} layers"
    if precision == "bfloat16" and not supports_bfloat16():
        return "torch crashes in bfloat16 on this CPU"
    numel = sum(parameter.numel() for parameter in network.parameters())
    needed, free = numel * WEIGHT_BITS[precision] // 8, free_memory(torch.device("cpu"))
    if free is not None and 2 * needed > free:  # the weights, and a packed copy of them
        return f"it needs up to {2 * needed / 1e9:,.1f} GB of memory, but only {free / 1e9:,.1f} GB are free"
    return None
