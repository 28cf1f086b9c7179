"""Memory bandwidth and FLOP/s of a machine: the two limits of a roofline.

    arithmetic    a product of large square matrices, in the dtype of the model
    bandwidth     reading and copying memory that is larger than any cache, and memory of the size of the model's
                  weights, which may be cached: the faster one counts

Both are the best that torch reaches here in several tries, not the figures of a data sheet.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Literal

import torch
from torch import nn

from qkv.decode.cpu.int8 import Int8Linear
from qkv.measure.cost import Cost

UNCACHED_BYTES = {"cpu": 2**28, "cuda": 2**30}
"""More bytes than the caches hold."""
MATRIX_SIZES = (256, 512, 1024, 2048, 4096, 8192)
"""Sides of the square matrices, tried as long as there is time."""
Bound = Literal["bandwidth", "arithmetic"]


@dataclass(frozen=True)
class MachineLimits:
    """The limits of a machine."""

    flops: float  # a second
    memory_bandwidth: float  # bytes per second
    cached_bandwidth: float  # bytes per second, for memory of the size of the model's weights

    @property
    def bandwidth(self) -> float:
        return max(self.memory_bandwidth, self.cached_bandwidth)

    @property
    def ridge_point(self) -> float:
        """FLOPs per byte above which FLOP/s is the limit."""
        return self.flops / self.bandwidth

    def min_seconds(self, cost: Cost) -> tuple[float, Bound]:
        """The least time of a pass, and what limits it."""
        reading, computing = cost.bytes / self.bandwidth, cost.flops / self.flops
        return (reading, "bandwidth") if reading >= computing else (computing, "arithmetic")


def measure_limits(
    device: torch.device, dtype: torch.dtype, *, int8: bool, weight_bytes: int, seconds: float
) -> MachineLimits:
    """Both limits, in about so many seconds. `weights` is how many bytes the model's weights take."""
    large = UNCACHED_BYTES.get(device.type, UNCACHED_BYTES["cpu"])
    return MachineLimits(
        flops=measure_flops(device, dtype, int8=int8, seconds=seconds / 2),
        memory_bandwidth=measure_bandwidth(device, large, seconds / 4),
        cached_bandwidth=measure_bandwidth(device, min(max(weight_bytes, 2**12), large), seconds / 4),
    )


@torch.inference_mode()
def measure_flops(device: torch.device, dtype: torch.dtype, *, int8: bool, seconds: float) -> float:
    """FLOPs a second of the best product. In int8 on a CPU the product is of whole numbers; on a GPU it is not."""
    best, stop = 0.0, time.perf_counter() + seconds
    for side in MATRIX_SIZES:
        x = torch.randn(side, side, device=device).to(dtype)
        product = Int8Linear(nn.Linear(side, side, bias=False)) if int8 and device.type == "cpu" else x.matmul
        taken = best_time(partial(product, x), device, seconds / len(MATRIX_SIZES))
        best = max(best, 2 * side**3 / taken)
        if time.perf_counter() + 3 * 8 * taken > stop:  # the next one takes eight times as long, and is tried thrice
            break
    return best


@torch.inference_mode()
def measure_bandwidth(device: torch.device, num_bytes: int, seconds: float) -> float:
    """Bytes a second of the best of reading memory, and of reading and writing it."""
    memory = torch.ones(num_bytes // 4, device=device)
    other = torch.empty_like(memory)
    reads = num_bytes / best_time(memory.sum, device, seconds / 2)
    copies = 2 * num_bytes / best_time(lambda: other.copy_(memory), device, seconds / 2)
    return max(reads, copies)


def best_time(work: Callable[[], object], device: torch.device, seconds: float) -> float:
    """The best time of some work, in seconds, tried for so long, and twice at least after it has warmed up."""
    work()
    stop, taken = time.perf_counter() + seconds, [time_call(work, device), time_call(work, device)]
    while time.perf_counter() < stop:
        taken.append(time_call(work, device))
    return min(taken)


def time_call(work: Callable[[], object], device: torch.device) -> float:
    """How many seconds some work takes until the device has done it."""
    synchronise(device)
    start = time.perf_counter()
    work()
    synchronise(device)
    return max(time.perf_counter() - start, 1e-9)


def synchronise(device: torch.device) -> None:
    """Wait until the device has done what it was given."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    elif device.type == "mps":
        torch.mps.synchronize()
