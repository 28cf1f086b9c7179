"""What a machine reaches with a model, beside what it could reach at most.

cost      what a pass must read and compute, counted from the network's own parts
limits    how fast the machine reads and computes, measured
machine   where to run and in which type, how much memory is free, what the machine is called
bench     reading, writing and searching, measured in batches of growing size
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
