"""Memory bandwidth and FLOP/s of a machine: the two limits of a roofline.

    arithmetic    FLOP/s of a product of large square matrices, in the dtype of the model
    bandwidth     bytes per second of reading or copying memory. It is measured twice: for a buffer that is larger than
                  any cache, and for a buffer of the size of the model's weights, which may fit into a cache. The higher
                  bandwidth is the limit.

Both limits are the best of several measurements with torch on this machine, not the figures of a data sheet.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Literal

import torch
from torch import nn

from qkv.decode import WeightPrecision
from qkv.decode.cpu.int4 import Int4Linear
from qkv.decode.cpu.int8 import Int8Linear
from qkv_bench.cost import Cost

UNCACHED_BYTES = {"cpu": 2**28, "cuda": 2**30}
"""Buffer sizes in bytes that are larger than any cache, by device type."""
MATRIX_SIZES = (256, 512, 1024, 2048, 4096, 8192)
"""Sizes of the square matrices. They are measured in this order until the time runs out."""
Bound = Literal["bandwidth", "arithmetic"]


@dataclass(frozen=True)
class MachineLimits:
    """The measured limits of a machine."""

    flops_per_second: float
    memory_bandwidth: float  # bytes per second, for a buffer that is larger than any cache
    weights_bandwidth: float  # bytes per second, for a buffer of the size of the model's weights

    @property
    def bandwidth(self) -> float:
        """The higher of the two bandwidths, in bytes per second."""
        return max(self.memory_bandwidth, self.weights_bandwidth)

    @property
    def ridge_point(self) -> float:
        """The arithmetic intensity (FLOPs per byte) above which arithmetic, not bandwidth, is the limit."""
        return self.flops_per_second / self.bandwidth

    def min_seconds(self, cost: Cost) -> tuple[float, Bound]:
        """The shortest possible time of a pass in seconds, and the limit that determines it."""
        reading, computing = cost.bytes / self.bandwidth, cost.flops / self.flops_per_second
        return (reading, "bandwidth") if reading >= computing else (computing, "arithmetic")


def measure_limits(
    device: torch.device, dtype: torch.dtype, *, precision: WeightPrecision | None, weight_bytes: int, seconds: float
) -> MachineLimits:
    """Measure both limits in about `seconds`. `weight_bytes` is the size of the model's weights."""
    large = UNCACHED_BYTES.get(device.type, UNCACHED_BYTES["cpu"])
    return MachineLimits(
        flops_per_second=measure_flops(device, dtype, precision=precision, seconds=seconds / 2),
        memory_bandwidth=measure_bandwidth(device, large, seconds / 4),
        weights_bandwidth=measure_bandwidth(device, min(max(weight_bytes, 2**12), large), seconds / 4),
    )


@torch.inference_mode()
def measure_flops(
    device: torch.device, dtype: torch.dtype, *, precision: WeightPrecision | None, seconds: float
) -> float:
    """The highest FLOP/s over matrix products of several sizes.

    With `precision`, the kernel of the quantized weights is measured instead of the product in `dtype`.
    """
    best, stop = 0.0, time.perf_counter() + seconds
    for size in MATRIX_SIZES:
        x = torch.randn(size, size, device=device).to(dtype)
        if precision is None:
            product: Callable[[torch.Tensor], torch.Tensor] = x.matmul
        else:
            linear = nn.Linear(size, size, bias=False)
            product = Int8Linear(linear) if precision == "int8" else Int4Linear(linear)
        taken = best_time(partial(product, x), device, seconds / len(MATRIX_SIZES))
        best = max(best, 2 * size**3 / taken)
        # The next size takes 8 times as long, and `best_time` runs it at least 3 times.
        if time.perf_counter() + 3 * 8 * taken > stop:
            break
    return best


@torch.inference_mode()
def measure_bandwidth(device: torch.device, num_bytes: int, seconds: float) -> float:
    """The bandwidth of a buffer in bytes per second: the higher of a read (sum) and a copy (read and write)."""
    memory = torch.ones(num_bytes // 4, device=device)
    target = torch.empty_like(memory)
    reads = num_bytes / best_time(memory.sum, device, seconds / 2)
    copies = 2 * num_bytes / best_time(lambda: target.copy_(memory), device, seconds / 2)
    return max(reads, copies)


def best_time(work: Callable[[], object], device: torch.device, seconds: float) -> float:
    """The shortest time of a call of `work`, in seconds.

    After one warm-up call, `work` is called at least twice, and then until `seconds` have passed.
    """
    work()
    stop, taken = time.perf_counter() + seconds, [time_call(work, device), time_call(work, device)]
    while time.perf_counter() < stop:
        taken.append(time_call(work, device))
    return min(taken)


def time_call(work: Callable[[], object], device: torch.device) -> float:
    """The time of one call of `work` in seconds, including its work on the device."""
    synchronise(device)
    start = time.perf_counter()
    work()
    synchronise(device)
    return max(time.perf_counter() - start, 1e-9)


def synchronise(device: torch.device) -> None:
    """Wait until the device has finished all queued work."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    elif device.type == "mps":
        torch.mps.synchronize()
