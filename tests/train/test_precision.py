"""The precision of a run on a CPU is measured once, and kept."""

from pathlib import Path
from typing import Any

import pytest
import torch
from fault_runs import go_on, tiny, train

from qkv.blocks import HeadConfig, StackConfig
from qkv.models import Config, build
from qkv.train import precision, setup
from qkv.train.loss.training_module import TrainingModule
from qkv.train.parallel.world import World
from qkv.train.precision import choose_precision, time_pass
from qkv.train.recipe.schema import ObjectiveSection, TrainSection
from qkv.train.run.folder import RunFolder


@pytest.fixture
def fast_bfloat16(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A processor whose bfloat16 is four times as fast. The list has the precisions that were timed."""
    timed: list[str] = []

    def fake(module: TrainingModule, section: TrainSection, precision: str, batch: object) -> float:
        timed.append(precision)
        return {"float32": 4.0, "bfloat16": 1.0}[precision]

    monkeypatch.setattr(precision, "time_pass", fake)
    monkeypatch.setattr(precision, "has_bfloat16_instructions", lambda: True)
    return timed


def module(width: int = 512, **fields: Any) -> TrainingModule:
    sizes = fields or {"heads": 2, "ffn_width": 4 * width}
    stack = StackConfig(vocab_size=64, width=width, layers=1, **sizes)  # type: ignore[arg-type]
    return TrainingModule(build(Config(decoder=stack, head=HeadConfig(kind="lm", outputs=64))), ObjectiveSection())


class FakeBatch:
    """Two sequences of eight tokens."""

    batch_size, num_tokens = 2, 16

    def split(self, parts: int) -> list["FakeBatch"]:
        return [self] * parts


@pytest.fixture
def data(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(precision, "Loader", lambda data: iter([FakeBatch()]))


@pytest.mark.parametrize(
    ("seconds", "chosen"), [(1.0, "bfloat16"), (3.5, "bfloat16"), (3.9, "float32"), (9.0, "float32")]
)
def test_the_faster_one_is_chosen(
    seconds: float, chosen: str, fast_bfloat16: list[str], data: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        precision, "time_pass", lambda module, section, name, batch: {"float32": 4.0, "bfloat16": seconds}[name]
    )
    found, note = choose_precision(TrainSection(), World(), module(), None)  # type: ignore[arg-type]
    assert found == chosen
    assert note.startswith(f"computing in {chosen}: ")
    assert f"{seconds / 4:.2f} times" in note


@pytest.mark.parametrize("explicit", ["float32", "bfloat16"])
def test_the_recipe_can_decide(explicit: str, fast_bfloat16: list[str], data: None) -> None:
    section = TrainSection(precision=explicit)  # type: ignore[arg-type]
    assert choose_precision(section, World(), module(), None) == (explicit, "")  # type: ignore[arg-type]
    assert not fast_bfloat16


@pytest.mark.parametrize("small", [{"width": 64}, {"width": 1024, "block": "lstm"}])
def test_small_and_recurrent_models_are_not_measured(
    small: dict[str, Any], fast_bfloat16: list[str], data: None
) -> None:
    assert choose_precision(TrainSection(), World(), module(**small), None) == ("float32", "")  # type: ignore[arg-type]
    assert not fast_bfloat16


def test_a_processor_without_it_is_not_measured(
    fast_bfloat16: list[str], data: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(precision, "has_bfloat16_instructions", lambda: False)
    assert choose_precision(TrainSection(), World(), module(), None) == ("float32", "")  # type: ignore[arg-type]
    assert not fast_bfloat16


def test_a_resumed_run_keeps_the_decision(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    precisions = []
    prepare_module = setup.prepare_module

    def record(module: TrainingModule, section: TrainSection, world: World, *, compiled: bool) -> TrainingModule:
        precisions.append(section.precision)
        return prepare_module(module, section, world, compiled=compiled)

    monkeypatch.setattr(setup, "prepare_module", record)
    monkeypatch.setattr(setup, "choose_precision", lambda *arguments: ("bfloat16", "a note about precision"))
    recipe = tiny(tmp_path, train={"steps": 2, "num_workers": 0})
    train(recipe)
    assert any("a note about precision" in str(record) for record in RunFolder(recipe.run).log_records())
    monkeypatch.setattr(setup, "choose_precision", lambda *arguments: ("float32", ""))
    go_on(recipe.run, "train.steps=4")
    assert precisions == ["bfloat16", "bfloat16"]


def test_a_measurement_changes_neither_weights_nor_random_numbers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The real measurement, on the first batch of a tiny run: afterwards all is as before."""
    monkeypatch.setattr(precision, "MIN_PARAMETERS", 0)
    monkeypatch.setattr(precision, "has_bfloat16_instructions", lambda: True)
    prepare_module, seen = setup.prepare_module, []

    def choose(section: TrainSection, world: World, module: TrainingModule, data: object) -> tuple[str, str]:
        before = [p.detach().clone() for p in module.parameters()]
        state = torch.get_rng_state()
        found = choose_precision(section, world, module, data)  # type: ignore[arg-type]
        assert all(torch.equal(a, b) for a, b in zip(before, module.parameters(), strict=True))
        assert all(p.grad is None for p in module.parameters())
        assert torch.equal(torch.get_rng_state(), state)
        seen.append(found)
        return found

    monkeypatch.setattr(setup, "choose_precision", choose)
    train(tiny(tmp_path, train={"steps": 1, "num_workers": 0}))
    assert seen
    assert "(measured;" in seen[0][1]
    assert prepare_module is setup.prepare_module
    assert time_pass is precision.time_pass


def test_micro_batches_of_a_cpu_fit_the_cache() -> None:
    """Wide models take 2,048 tokens at a time, narrow ones more."""
    wide, narrow = (module(width=width).network.config for width in (1024, 64))
    assert setup.cached_tokens(wide) == 2048
    assert setup.cached_tokens(narrow) == setup.CACHED_NUMBERS // (2 * narrow.stack.ffn_width)
