"""Benchmarks: measured throughput against the hardware's limits (a roofline).

cost      the bytes and FLOPs of a forward pass, counted from the network's modules
limits    measures the memory bandwidth and the FLOP/s of the machine
machine   chooses device and dtype; the machine's free memory and name
bench     measures prefill, decoding and beam search at growing batch sizes
precisions   measures one sequence at every precision of the weights
"""

from qkv.measure.bench import BenchPoint, BenchResult, run_bench
from qkv.measure.cost import Cost, prefill_cost, step_cost
from qkv.measure.limits import MachineLimits, measure_limits
from qkv.measure.machine import check_memory, choose_device, choose_dtype
from qkv.measure.precisions import can_measure_precisions, measure_precisions

__all__ = [
    "BenchPoint",
    "BenchResult",
    "Cost",
    "MachineLimits",
    "can_measure_precisions",
    "check_memory",
    "choose_device",
    "choose_dtype",
    "measure_limits",
    "measure_precisions",
    "prefill_cost",
    "run_bench",
    "step_cost",
]
