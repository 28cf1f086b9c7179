"""Decide whether to compile a run: only if compiled steps save more time than the compiler takes.

The decision is an estimate, and compiled steps round differently. So it is made once, when a run starts, and every
checkpoint keeps it.
"""

import torch

from qkv.blocks.parts import PARTS
from qkv.data.stream.sequences import SequenceStream
from qkv.models import Network
from qkv.train.parallel.world import World
from qkv.train.recipe.schema import TrainSection

SAVED_FRACTION = 0.3
"""The fraction of a captured step's time that compiling saves, measured on one H200 with 10M to 124M parameters."""
COMPILE_SECONDS, COMPILE_SECONDS_PER_LAYER = 10.0, 2.0
"""The time to compile a step, measured on one H200."""
FLOPS_FRACTION = 0.35
"""The fraction of a large product's speed that a whole training step reaches."""
PROBE_SIZE = 4096
"""The size of the product that measures the speed of a GPU."""


def should_compile(section: TrainSection, world: World, network: Network, data: SequenceStream) -> tuple[bool, str]:
    """Return whether to compile the run's steps, and a note that explains it ("" if there is nothing to explain)."""
    if not network.config.has_fixed_shapes:
        parts = [
            f'{slot} = "{name}"' for slot, name in network.config.list_parts() if not PARTS[slot][name].fixed_shapes
        ]
        note = (
            f'train.compile = "yes" has no effect: the shapes inside {" and ".join(dict.fromkeys(parts))} depend on '
            "the data, so they change in every batch"
        )
        return False, note if section.compile == "yes" else ""
    if section.compile != "auto":
        return section.compile == "yes", ""
    if world.device.type != "cuda" or world.is_sharded or data.layout == "padded":  # each padded shape is compiled
        return False, ""
    seconds = estimate_seconds(section, network, data, measure_flops(world.device))
    layers = sum(stack.layers for stack in network.config.stacks.values())
    compile_seconds = COMPILE_SECONDS + COMPILE_SECONDS_PER_LAYER * layers
    pays = seconds * SAVED_FRACTION > compile_seconds
    verb = "are compiled" if pays else "are not compiled"
    return pays, (
        f"the steps of this run {verb}: they would take about {seconds:,.0f} s without compiling, and compiling takes "
        f'about {compile_seconds:.0f} s (to change it: train.compile = "{"no" if pays else "yes"}")'
    )


def estimate_seconds(section: TrainSection, network: Network, data: SequenceStream, flops: float) -> float:
    """Return the estimated time of a run's steps, if a GPU computes `flops` operations per second in large products."""
    parameters = sum(parameter.numel() for parameter in network.parameters())
    seconds_per_token = 6 * parameters / (FLOPS_FRACTION * flops)
    limits = [minutes * 60 for minutes in (section.minutes, section.cpu_minutes) if minutes]
    if section.steps:
        limits.append(section.steps * section.batch_tokens * seconds_per_token)
    if section.epochs:
        tokens_per_pool = int(data.plan_pool(0).sequence_lengths.sum())
        limits.append(data.order.num_pools(section.epochs) * tokens_per_pool * seconds_per_token)
    return min(limits, default=float("inf"))


def measure_flops(device: torch.device) -> float:
    """Return the operations per second of a large product in bfloat16."""
    x = torch.ones(PROBE_SIZE, PROBE_SIZE, dtype=torch.bfloat16, device=device)
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    for timed in (False, True):
        start.record()
        for _ in range(3 if timed else 1):
            x @ x
        end.record()
    torch.cuda.synchronize()
    seconds = float(start.elapsed_time(end)) / 1000
    return 3 * 2 * PROBE_SIZE**3 / seconds
