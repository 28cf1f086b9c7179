"""The note on what a budget buys, and the time that predictions on a display may take."""

import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from qkv.train import core_share, speed
from qkv.train.parallel.world import World
from qkv.train.progress import Progress
from qkv.train.recipe.schema import ModelSection, Recipe, TrainSection
from qkv.train.speed import SpeedMeter


@pytest.fixture(autouse=True)
def threads(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The seconds that threads ran and waited, so that the notes do not depend on what else this machine does."""
    times = [0.0, 0.0]
    monkeypatch.setattr(core_share, "thread_times", lambda: (times[0], times[1]))
    return times


def said(steps: int = 21, epochs_read: float = 0.01, excluded: float = 0.0, **sections: Any) -> list[str]:
    """The notes of a run whose first step takes 30 s and every other step 2 s."""
    progress = Progress()
    meter = SpeedMeter(progress, 0.0, World(device=torch.device("cpu")))
    recipe = Recipe(**{"train": TrainSection(minutes=60.0), **sections})
    notes = []
    for step in range(1, steps + 1):
        progress.step, progress.seconds = step, 30.0 + 2.0 * (step - 1) + excluded
        meter.excluded_seconds = excluded
        notes.append(meter.budget_note(recipe, progress, 512, lambda: epochs_read))
    return [note for note in notes if note]


def test_the_first_minute_says_what_the_budget_buys() -> None:
    (note,) = said()
    expected = "a step takes 2 s, so this run is about 1,606 steps in 53.5 minutes: 5.4 epochs of the training data"
    assert note == expected, "a tenth of the time is for evaluations"


@pytest.mark.parametrize(
    ("sections", "advice"),
    [
        ({}, "To see more of it, take model.width=256 or a GPU or a larger budget"),
        ({"model": ModelSection(preset="gpt2")}, "To see more of it, take a GPU or a larger budget"),
    ],
    ids=["new", "preset"],
)
def test_less_than_an_epoch_comes_with_advice(sections: dict[str, Any], advice: str) -> None:
    (note,) = said(epochs_read=1e-4, **sections)
    assert note.endswith(f"0.054 epochs of the training data. {advice}")


@pytest.mark.parametrize(
    ("train", "expected"),
    [
        (TrainSection(steps=9000), "about 9,000 steps in 5.0 hours"),
        (TrainSection(epochs=3), "about 900 steps in 30.0 minutes: 3 epochs"),
        (TrainSection(steps=9000, minutes=10.0), "about 256 steps in 8.5 minutes"),
    ],
    ids=["steps", "epochs", "the first limit"],
)
def test_other_budgets(train: TrainSection, expected: str) -> None:
    assert expected in said(train=train)[0]


def test_evaluations_do_not_count_as_steps_and_short_runs_say_nothing() -> None:
    assert said(excluded=1000.0) == said()
    assert said(steps=2) == []


def test_a_resumed_run_does_not_say_it_again() -> None:
    meter = SpeedMeter(Progress(step=100), 0.5, World())
    assert meter.budget_note(Recipe(), Progress(step=200, seconds=1e3), 64, lambda: 1.0) == ""


def slow_notes(threads: list[float], step_seconds: float, waited: float) -> list[str]:
    """The notes on a run with steps of 2 s that soon take `step_seconds`, while threads wait for this time."""
    meter, progress = SpeedMeter(Progress(), 0.0, World(device=torch.device("cpu"))), Progress()
    section = TrainSection(minutes=10.0)
    notes = []
    for step in range(1, 41):
        progress.step, progress.seconds = step, progress.seconds + (2.0 if step <= 10 else step_seconds)
        threads[0] += 2.0
        threads[1] += waited if step > 10 else 0.0
        meter.budget_note(Recipe(train=section), progress, 64, lambda: 1.0)
        notes.append(meter.slow_note(section, progress))
    return [note for note in notes if note]


def test_a_budget_that_buys_much_less_than_it_seemed_says_so_once(threads: list[float]) -> None:
    (note,) = slow_notes(threads, 8.0, waited=6.0)
    assert note.startswith("steps have become slower: other programs use the cores, so the run gets 25 % of the time")
    assert "buys about 75 steps, not 270" in note
    assert "resume the run with train.minutes=36, or set train.cpu_minutes" in note
    (note,) = slow_notes(threads, 8.0, waited=0.0)
    assert note.startswith("steps have become slower. At this speed"), "not because of other programs"
    assert slow_notes(threads, 3.0, waited=1.0) == [], "a little slower"


def test_the_first_note_says_that_the_machine_is_busy(threads: list[float]) -> None:
    meter, progress = SpeedMeter(Progress(), 0.0, World(device=torch.device("cpu"))), Progress(step=20, seconds=40.0)
    meter.budget_note(Recipe(), Progress(step=1, seconds=2.0), 64, lambda: 1.0)
    threads[:] = 20.0, 20.0
    assert "so the run gets 50 % of the time" in meter.budget_note(Recipe(), progress, 64, lambda: 1.0)


def test_the_share_is_measured_from_the_times_of_threads(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.undo()
    monkeypatch.setattr(core_share, "THREADS", tmp_path)
    for number, text in enumerate(("0 0 0", "0 0 0", "broken")):
        (tmp_path / str(number)).mkdir()
        (tmp_path / str(number) / "schedstat").write_text(text)
    share = core_share.CoreShare()
    assert math.isnan(share.measure())
    (tmp_path / "0" / "schedstat").write_text("3000000000 1000000000 5")
    (tmp_path / "1" / "schedstat").write_text("1000000000 3000000000 5")
    assert share.measure() == 0.5


def test_slow_predictions_are_seldom(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([0.0, 0.0, 2.0, 2.0])
    monkeypatch.setattr(speed, "time", SimpleNamespace(monotonic=lambda: next(clock)))
    meter = SpeedMeter(Progress(), 0.0, World())
    assert meter.is_sample_due(4.0)
    with meter.time_sample():
        pass
    assert [meter.is_sample_due(seconds) for seconds in (8.0, 43.0, 44.0)] == [False, False, True]
