"""Benchmarks: measured throughput against the hardware's limits (a roofline).

cost      what a forward pass must read and compute, counted from the network's modules
limits    memory bandwidth and FLOP/s of the machine, measured
machine   device, dtype, free memory, name of the machine
bench     prefill, decoding and beam search at growing batch sizes
"""

from qkv.measure.bench import BenchPoint, BenchResult, measure
from qkv.measure.cost import Cost, prefill_cost, step_cost
from qkv.measure.limits import MachineLimits, measure_limits
from qkv.measure.machine import check_memory, choose_device, choose_dtype

__all__ = [
    "BenchPoint",
    "BenchResult",
    "Cost",
    "MachineLimits",
    "check_memory",
    "choose_device",
    "choose_dtype",
    "measure",
    "measure_limits",
    "prefill_cost",
    "step_cost",
]
