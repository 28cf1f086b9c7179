"""The open tables of training: optimizers, learning rate schedules and trackers, by the names that recipes use.

    register_optimizer("lion", make_lion)       # then train.optimizer = "lion" works in a recipe
    register_schedule("triangle", triangle)
    register_tracker("mlflow", MLflow)

Register in every process that trains, before it reads the recipe: a run that is resumed needs the same names.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from qkv.tables import OpenTable

MakeOptimizer = Callable[[Any], Any]
"""A function of an `optim.optimizers.OptimizerSetup` that returns a torch `Optimizer`."""
MakeState = Callable[[Mapping[str, Any], Any], dict[str, Any]]
"""A function of a parameter group and a parameter that returns the parameter's state before the first step."""
DecayFactor = Callable[[Any, int, float], float]
"""A function of the `TrainSection`, the step (from 0) and the spent fraction of the budget."""
MakeTracker = Callable[[Path, Mapping[str, Any]], Any]
"""A function of the run folder and of the recipe as a table that returns a `train.watch.Watcher`."""


@dataclass(frozen=True)
class OptimizerRow:
    """How an optimizer is made, and whether its update can be fused and captured in a CUDA graph."""

    make: MakeOptimizer
    is_fused: bool = False
    state: MakeState | None = None


OPTIMIZERS = OpenTable[OptimizerRow](
    "optimizer",
    lazy={
        "adamw": "qkv.train.optim.optimizers:ADAMW",
        "adam": "qkv.train.optim.optimizers:ADAM",
        "sgd": "qkv.train.optim.optimizers:SGD_ROW",
        "lamb": "qkv.train.optim.optimizers:LAMB",
        "muon": "qkv.train.optim.optimizers:MUON",
    },
)
SCHEDULES = OpenTable[DecayFactor](
    "schedule",
    lazy={
        "cosine": "qkv.train.optim.schedule:cosine_decay",
        "linear": "qkv.train.optim.schedule:linear_decay",
        "constant": "qkv.train.optim.schedule:constant_decay",
        "inverse_sqrt": "qkv.train.optim.schedule:inverse_sqrt_decay",
        "wsd": "qkv.train.optim.schedule:wsd_decay",
    },
)
TRACKERS = OpenTable[MakeTracker](
    "tracker",
    lazy={
        "tensorboard": "qkv.train.run.trackers:TensorBoard",
        "wandb": "qkv.train.run.trackers:WeightsAndBiases",
        "trackio": "qkv.train.run.trackers:Trackio",
    },
)


def register_optimizer(
    name: str, make: MakeOptimizer, state: MakeState | None = None, *, is_fused: bool = False, replace: bool = False
) -> None:
    """Add an optimizer: a function of an `OptimizerSetup` that returns a torch `Optimizer`.

    `state` makes the state of a parameter before the first step; without it, the first step makes it. All of the state
    must be tensors in `optimizer.state`, so that a run can be resumed; this is checked before a run starts. With
    `is_fused`, `setup.lr` may be a tensor, and the update must not read the values of tensors.
    """
    OPTIMIZERS.register(name, OptimizerRow(make, is_fused, state), replace=replace)


def register_schedule(name: str, decay_factor: DecayFactor, *, replace: bool = False) -> None:
    """Add a learning rate schedule: the factor of `train.lr` after warm-up, which every schedule has."""
    SCHEDULES.register(name, decay_factor, replace=replace)


def register_tracker(name: str, make: MakeTracker, *, replace: bool = False) -> None:
    """Add a tracker, such as a subclass of `qkv.train.run.trackers.Tracker`."""
    TRACKERS.register(name, make, replace=replace)
