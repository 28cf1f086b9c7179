"""Choose the precision of a run on a CPU, by a measurement.

Some processors multiply bfloat16 matrices several times as fast as float32 ones, others only emulate it, and a small
model loses more by conversions than it gains. So a forward and backward pass of the run's own first batch is timed in
both dtypes. The decision is made once, when a run starts, and every checkpoint keeps it.
"""

import time

import torch

from qkv.data.load.batch import Batch
from qkv.data.load.loader import Loader
from qkv.data.stream.sequences import SequenceStream
from qkv.models import Network
from qkv.models.bfloat16 import has_bfloat16_instructions
from qkv.train.loss.training_module import TrainingModule, make_labelled_batch
from qkv.train.parallel.world import World
from qkv.train.recipe.schema import TrainSection
from qkv.train.step import resolve_precision

MIN_PARAMETERS = 100_000
"""A smaller model computes in float32. Its products are too small to gain from bfloat16."""
MIN_SPEEDUP = 1.1
"""bfloat16 rounds more, so it must be at least this much faster."""
PROBE_FLOPS = 2e10
"""The measured part of a batch takes about this many operations, but has at least one sequence."""


def choose_precision(
    section: TrainSection, world: World, module: TrainingModule, data: SequenceStream
) -> tuple[str, str]:
    """Return the dtype in which a run computes, and a note that explains a measurement ("" without one)."""
    parameters = sum(parameter.numel() for parameter in module.network.parameters())
    if section.precision != "auto" or world.device.type != "cpu" or world.is_sharded:
        return resolve_precision(section, world.device), ""
    if parameters < MIN_PARAMETERS or not module.network.config.has_blocks or not has_bfloat16_instructions():
        return "float32", ""
    batch = probe_batch(next(iter(Loader(data))), parameters)
    seconds = {"float32": float("inf"), "bfloat16": float("inf")}
    with torch.random.fork_rng(devices=[]):
        for _ in range(4):  # the first pass warms up
            for precision in seconds:
                seconds[precision] = min(seconds[precision], time_pass(module, section, precision, batch))
    speedup = seconds["float32"] / seconds["bfloat16"]
    chosen, other = ("bfloat16", "float32") if speedup >= MIN_SPEEDUP else ("float32", "bfloat16")
    return chosen, (
        f"computing in {chosen}: on this processor, bfloat16 takes {1 / speedup:.2f} times as long as float32 "
        f'(measured; to change it: train.precision = "{other}")'
    )


def probe_batch(batch: Batch, parameters: int) -> Batch:
    """The part of a batch that is measured."""
    tokens = PROBE_FLOPS / (6 * parameters)
    return batch.split(min(batch.batch_size, max(1, round(batch.num_tokens / tokens))))[0]


def time_pass(module: TrainingModule, section: TrainSection, precision: str, batch: Batch) -> float:
    """The seconds of a forward and backward pass. Weights do not change."""
    set_residual_dtype(module.network, section, precision)
    one = torch.ones(())
    start = time.perf_counter()
    with torch.autocast("cpu", torch.bfloat16, enabled=precision == "bfloat16"):
        loss = module(make_labelled_batch(batch, torch.device("cpu")), one, one)
    loss.backward()
    seconds = time.perf_counter() - start
    module.zero_grad(set_to_none=True)
    return seconds


def set_residual_dtype(network: Network, section: TrainSection, precision: str) -> None:
    """Set the dtype of the residual stream of all stacks. With "auto" it is the dtype of the matrix products."""
    in_bfloat16 = precision == "bfloat16" and section.residual_dtype in ("auto", "bfloat16")
    for stack in network.stacks.values():
        stack.residual_dtype = torch.bfloat16 if in_bfloat16 else None
