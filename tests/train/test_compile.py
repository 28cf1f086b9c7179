"""Whether a run is compiled is decided once, from its budget."""

from types import SimpleNamespace

import pytest
import torch
from fault_runs import go_on, tiny, train

from qkv.blocks import StackConfig
from qkv.models import Config, build
from qkv.models.tables.presets import find_preset
from qkv.train import compile as compiling
from qkv.train import setup
from qkv.train.compile import should_compile
from qkv.train.parallel.world import World
from qkv.train.recipe.schema import TrainSection

PACKED, PADDED = SimpleNamespace(layout="packed"), SimpleNamespace(layout="padded")
"""Streams, as far as the decision looks at them."""


class OneGpu:
    """A world with a GPU, as far as the decision looks at it."""

    device = torch.device("cuda")
    is_sharded = False


@pytest.fixture
def fast_gpu(monkeypatch):
    monkeypatch.setattr(compiling, "measure_flops", lambda device: 7e14)


@pytest.mark.parametrize(
    ("budget", "expected"),
    [({"steps": 1000}, False), ({"steps": 1_000_000}, True), ({"minutes": 1.0}, False), ({"minutes": 60.0}, True)],
)
def test_long_runs_are_compiled(budget, expected, fast_gpu):
    network = build(find_preset("gpt2"), device="meta")
    section = TrainSection(**{"steps": 0, **budget})
    compiled, note = should_compile(section, OneGpu(), network, PACKED)
    assert compiled == expected
    assert ("are compiled" if expected else "are not compiled") in note


@pytest.mark.parametrize("choice", ["yes", "no"])
def test_the_recipe_can_decide(choice, fast_gpu):
    network = build(find_preset("gpt2"), device="meta")
    assert should_compile(TrainSection(steps=1, compile=choice), OneGpu(), network, PACKED) == (choice == "yes", "")


@pytest.mark.parametrize("choice", ["auto", "yes", "no"])
def test_a_recurrent_model_is_not_compiled(choice, fast_gpu):
    """Its number of steps depends on the documents of a batch."""
    stack = StackConfig(vocab_size=9, width=8, layers=1, block="lstm")
    network = build(Config(decoder=stack), device="meta")
    compiled, note = should_compile(TrainSection(steps=10**9, compile=choice), OneGpu(), network, PACKED)
    assert not compiled
    assert ("has no effect" in note) == (choice == "yes")


def test_padded_batches_are_not_compiled(fast_gpu):
    """Each of their shapes would be compiled, which takes longer than the steps."""
    network, section = build(find_preset("gpt2"), device="meta"), TrainSection(steps=10**9)
    assert should_compile(section, OneGpu(), network, PADDED) == (False, "")
    assert should_compile(section, OneGpu(), network, PACKED)[0]


def test_a_cpu_does_not_compile():
    network = build(find_preset("gpt2"), device="meta")
    world = World(device=torch.device("cpu"))
    assert should_compile(TrainSection(steps=10**9), world, network, PACKED) == (False, "")


@pytest.mark.parametrize("decision", [True, False])
def test_a_resumed_run_keeps_the_decision(decision, tmp_path, monkeypatch):
    prepare_module, compiled = setup.prepare_module, []

    def record(module, section, world, **options):
        compiled.append(options["compiled"])
        return prepare_module(module, section, world, compiled=False)

    monkeypatch.setattr(setup, "prepare_module", record)
    monkeypatch.setattr(setup, "should_compile", lambda *arguments: (decision, "a note about compiling"))
    recipe = tiny(tmp_path, train={"steps": 2, "num_workers": 0})
    train(recipe)
    monkeypatch.setattr(setup, "should_compile", lambda *arguments: (not decision, ""))
    go_on(recipe.run, "train.steps=4")
    assert compiled == [decision, decision]
