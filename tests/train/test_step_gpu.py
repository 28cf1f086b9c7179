"""Steps that a CUDA graph takes are the steps as written. These tests need a GPU, and say so where there is none."""

from typing import Any

import pytest
import torch
from objective_cases import CASES, network
from synthetic_data import OBJECTIVES

from qkv.data.load.loader import Loader
from qkv.data.stream.sequences import SequenceStream
from qkv.train.loss.training_module import TrainingModule
from qkv.train.optim.optimizers import make_optimizer
from qkv.train.parallel.world import World
from qkv.train.recipe.schema import ObjectiveSection, TrainSection
from qkv.train.setup import prepare_module
from qkv.train.step import Stepper

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="this machine has no GPU")
STEPS = 6


def weights_after(name: str, **keys: Any) -> tuple[dict[str, torch.Tensor], float, int]:
    """The weights after a few steps on a GPU, the summed loss, and how many graphs were captured."""
    device = torch.device("cuda")
    section = TrainSection(**{"precision": "float32", "steps": 100, **keys})
    net = network(*CASES[name]).float().to(device)
    world = World(device=device)
    learner = prepare_module(
        TrainingModule(net, ObjectiveSection()).train(), section, world, compiled=keys.get("compile") != "no"
    )
    optimizer = make_optimizer(net.named_parameters(), section, fused=True, capturable=True)
    stepper = Stepper(learner, optimizer, section, world)
    objective = OBJECTIVES[name]()
    batches = iter(Loader(SequenceStream(objective, batch_tokens=max(1200, sum(objective.max_lengths)), seed=1)))
    for step in range(STEPS):
        stepper(next(batches), step, 1e-2)
    assert stepper.pop_bad_steps() is None
    return {key: p.detach().cpu() for key, p in net.named_parameters()}, stepper.pop_loss(), len(stepper.graphs)


@pytest.mark.parametrize("optimizer", ["adamw", "adam", "sgd"])
@pytest.mark.parametrize("name", ["next token", "masked", "pairs"])
def test_captured_steps_are_the_eager_ones(name: str, optimizer: str) -> None:
    """An optimizer whose state began anew at every replay would be found here: its moments are those of one step.

    Only torch's fused optimizers leave an update out by themselves, so only they are captured.
    """
    eager, loss, none = weights_after(name, optimizer=optimizer, compile="no")
    captured, same, some = weights_after(name, optimizer=optimizer)
    assert none == 0
    assert some > 0
    assert loss == pytest.approx(same, rel=1e-4)
    for key, value in eager.items():
        torch.testing.assert_close(captured[key], value, rtol=2e-3, atol=2e-4, msg=lambda m, k=key: f"{k}: {m}")


def test_graphs_of_several_shapes_share_their_memory() -> None:
    device, section = torch.device("cuda"), TrainSection(precision="float32", steps=100)
    net = network(*CASES["next token"]).float().to(device)
    world = World(device=device)
    module = prepare_module(TrainingModule(net, ObjectiveSection()).train(), section, world, compiled=False)
    optimizer = make_optimizer(net.named_parameters(), section, fused=True, capturable=True)
    stepper = Stepper(module, optimizer, section, world)
    reserved = []
    for step, batch_tokens in enumerate((48_000, 40_000, 32_000)):
        stream = SequenceStream(OBJECTIVES["next token"](), batch_tokens=batch_tokens, seed=1)
        stepper(next(iter(Loader(stream))), step, 1e-2)
        torch.cuda.empty_cache()
        reserved.append(torch.cuda.memory_reserved())
    assert len(stepper.graphs) == 3
    assert reserved[-1] < 1.5 * reserved[0]
