"""What each process of the tests of sharded training does: `python parallel_trainer.py PLAN` in torchrun's environment.

Every job is a run of its own, trained as `qkv train` does it. What is noted on the way: how many numbers the network
held before it was cut, and how often a whole one was made. The loop's clock tells the steps of this process, so that
the time is the same each time.
"""

import json
import os
import signal
import sys
import time
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh

from qkv.tasks import train as training
from qkv.tasks.prepare import prepare
from qkv.tasks.train import open_recipe, train_on_rank
from qkv.train import loop, setup
from qkv.train.loop import StoppedBySignal
from qkv.train.parallel.world import World, init_world
from qkv.train.recipe.schema import TrainSection
from qkv.train.run import signals

signals.DEADLINE_SECONDS = 2.0
LONGER = 4.0
"""An evaluation that outlasts the deadline."""

network_for, spread, step, judge = (
    prepare.build_network,
    setup.parallelize,
    loop.Stepper.__call__,
    training.ValidationMetrics.__call__,
)


class Notes:
    """What one job was seen to do in this process."""

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self.held, self.made, self.clock = -1, 0, 0.0

    def watch(self, asked: bool) -> None:
        """Look over the shoulder of the next run; `asked`: let it be asked to stop while it evaluates."""
        setup.parallelize, prepare.build_network, loop.Stepper.__call__ = self.spread, self.network_for, self.step_of()
        loop.time = SimpleNamespace(monotonic=lambda: self.clock)
        training.ValidationMetrics.__call__ = interrupted if asked else judge

    def spread(self, learner: nn.Module, *others: Any) -> nn.Module:
        self.held = sum(parameter.numel() for parameter in learner.parameters() if not parameter.is_meta)
        return spread(learner, *others)

    def network_for(self, *arguments: Any) -> Any:
        self.made += 1
        return network_for(*arguments)

    def step_of(self) -> Any:
        def taken(*arguments: Any) -> None:
            step(*arguments)
            self.clock += 1.0 + self.rank  # no two processes have the same time

        return taken


def interrupted(self: training.ValidationMetrics, *arguments: Any, **options: Any) -> Any:
    os.kill(os.getppid(), signal.SIGTERM)  # the launcher, which passes it on
    time.sleep(LONGER)
    return judge(self, *arguments, **options)


def do(job: dict[str, Any], world: World, folder: Path) -> int:
    recipe = open_recipe(job["recipe"], job["changes"])
    notes = Notes(world.rank)
    notes.watch(job["asked"])
    found: dict[str, Any] = {}
    code = 0
    try:
        with signals.StopSignals(multi_process=True) as stop:
            found["end"] = asdict(train_on_rank(world, recipe, None, None, stop).run_end)
    except StoppedBySignal as stopped:
        code = stopped.exit_code
    found |= {"held": notes.held, "made": notes.made, "code": code}
    (folder / f"{job['name']}.{world.rank}.json").write_text(json.dumps(found))
    return code


def main() -> int:
    plan = json.loads(Path(sys.argv[1]).read_text())
    torch.set_num_threads(1)
    world, code = init_world(TrainSection(device="cpu")), 0
    for job in plan["jobs"]:
        shape = (world.size // job["tensor"], job["tensor"])
        mesh = init_device_mesh("cpu", shape, mesh_dim_names=("data", "tensor"))
        here = replace(world, parallel=job["shard"], tensor_size=job["tensor"], mesh=mesh, row_orders={})
        code = do(job, here, Path(plan["folder"]))
    world.leave()
    return code


if __name__ == "__main__":
    sys.exit(main())
