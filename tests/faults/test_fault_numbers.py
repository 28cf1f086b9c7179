"""Runs with NaN or infinite losses and gradients, and runs with too little memory."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from fault_runs import changed, difference, go_on, log_of, newest, notes_of, tiny, train
from torch import Tensor

from qkv.data.load.loader import Loader
from qkv.errors import QkvError
from qkv.tasks.prepare.prepare import prepare
from qkv.train.loss.training_module import LabelledBatch, TrainingModule
from qkv.train.recipe.schema import Recipe
from qkv.train.run.folder import RunFolder
from qkv.train.setup import Job
from qkv.train.step import Stepper

BAD = 6  # the step that goes wrong
PARTS = 2  # of each step


class Spoiled(torch.autograd.Function):
    """A number as it is; its gradient is not."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, value: float) -> Tensor:
        ctx.value = value
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return gradient * ctx.value, None


POISONS = {
    "a loss that is NaN": lambda loss: loss * math.nan,
    "a loss that is infinite": lambda loss: loss + math.inf,
    "a gradient that is NaN": lambda loss: Spoiled.apply(loss, math.nan),
    "a gradient that is infinite": lambda loss: Spoiled.apply(loss, math.inf),
}


def poison(patch: pytest.MonkeyPatch, spoil: Any, *steps: int) -> None:
    """Let the last micro-batch of these steps go wrong."""
    forward, calls = TrainingModule.forward, 0

    def poisoned(self: TrainingModule, lesson: LabelledBatch, *weights: Tensor) -> Tensor:
        nonlocal calls
        loss = forward(self, lesson, *weights)
        if self.training:
            calls += 1
            if calls in [step * PARTS for step in steps]:
                return spoil(loss)
        return loss

    patch.setattr(TrainingModule, "forward", poisoned)


@pytest.fixture
def jobs(monkeypatch: pytest.MonkeyPatch) -> list[Job]:
    """Every job that is trained, so that its network can be looked at."""
    from qkv.tasks import train as training

    fit, seen = training.fit, []
    monkeypatch.setattr(training, "fit", lambda job: seen.append(job) or fit(job))
    return seen


def recipe_in(folder: Path, **keys: Any) -> Recipe:
    return tiny(folder, train={"save_every": 1, "keep_checkpoints": 20, "num_workers": 0, **keys})


def weights(run: str, step: int) -> dict[str, Tensor]:
    checkpoint = RunFolder(run).checkpoints.open_step(step)
    return {name: checkpoint.read_tensor(name) for name in checkpoint.tensor_names() if name.startswith("model.")}


@pytest.mark.parametrize("kind", POISONS)
def test_the_run_stops_with_its_weights_untouched_and_names_step_and_examples(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, jobs: list[Job]
) -> None:
    recipe = recipe_in(tmp_path)
    poison(monkeypatch, POISONS[kind], BAD)
    with pytest.raises(QkvError, match=f"step {BAD}: the loss or the gradient is not finite") as error:
        train(recipe)
    for name, kept in weights(recipe.run, BAD - 1).items():
        assert torch.equal(kept, jobs[0].network.get_parameter(name.removeprefix("model.")).detach())
    assert newest(recipe.run).step == BAD - 1
    batches = list(zip(range(BAD), Loader(prepare(recipe).train_data), strict=False))
    told = Loader(prepare(recipe).train_data).origins(batches[-1][1])
    assert f"{tmp_path / 'pairs.tsv'}:" in told[0]
    assert "; ".join(told[:3]) in str(error.value)
    assert "train.on_nonfinite=skip" in str(error.value)
    assert all(line["loss"] is not None for line in log_of(recipe.run, "step")), "nothing of it is in the log"


@pytest.mark.parametrize("kind", POISONS)
def test_skipping_goes_on_without_the_step_and_says_so(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = recipe_in(tmp_path, on_nonfinite="skip")
    poison(monkeypatch, POISONS[kind], BAD, BAD + 2)
    assert train(recipe).run_end.step == 10
    checkpoints = RunFolder(recipe.run).checkpoints
    before, at, after = (weights(recipe.run, step) for step in (BAD - 1, BAD, BAD + 1))
    assert all(torch.equal(before[name], at[name]) for name in before)
    assert any(not torch.equal(at[name], after[name]) for name in after)
    assert all(value.isfinite().all() for value in weights(recipe.run, 10).values())
    assert checkpoints.open_step(10).state["progress"]["skipped_steps"] == 2
    notes = [line for line in notes_of(recipe.run).splitlines() if "skipped" in line]
    assert [note.split(":")[0] for note in notes] == [f"step {BAD}", f"step {BAD + 2}"]
    assert all("pairs.tsv:" in note for note in notes)
    losses = {line["step"]: line["loss"] for line in log_of(recipe.run, "step")}
    assert losses[BAD] is None
    assert losses[BAD + 1] > 0


def test_a_step_that_was_skipped_is_not_averaged_into_the_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten steps in one line of the log: the mean of the nine that had a loss."""
    recipe = recipe_in(tmp_path, on_nonfinite="skip")
    with monkeypatch.context() as patch:
        poison(patch, POISONS["a loss that is NaN"], BAD)
        train(recipe)
    poison(monkeypatch, POISONS["a loss that is NaN"], BAD)
    train(changed(recipe, "one line", log_every=10))
    losses = [line["loss"] for line in log_of(recipe.run, "step") if line["loss"] is not None]
    assert len(losses) == 9
    (line,) = log_of(tmp_path / "one line", "step")
    assert line["loss"] == pytest.approx(sum(losses) / 9, rel=1e-12)


def test_a_run_that_stopped_can_go_on_by_skipping(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = recipe_in(tmp_path)
    with monkeypatch.context() as patch:
        poison(patch, POISONS["a loss that is NaN"], BAD)
        with pytest.raises(QkvError):
            train(recipe)
    with monkeypatch.context() as patch:
        poison(patch, POISONS["a loss that is NaN"], 1)
        go_on(recipe.run, "train.on_nonfinite=skip")
    poison(monkeypatch, POISONS["a loss that is NaN"], BAD)
    train(changed(recipe, "skipping", on_nonfinite="skip"))
    assert difference(newest(recipe.run), newest(tmp_path / "skipping")) == ""


def test_unguarded_the_poison_would_reach_the_weights(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A control: the same run with an update that looks at nothing."""
    monkeypatch.setattr(Stepper, "_update", lambda self, loss: self.optimizer.step())
    poison(monkeypatch, POISONS["a gradient that is NaN"], BAD)
    recipe = recipe_in(tmp_path)
    with caplog.at_level("WARNING", logger="qkv"):
        train(recipe)
    assert "results are empty: the model's logits were not finite" in caplog.text, "and does not end by it"
    assert not all(value.isfinite().all() for value in weights(recipe.run, 10).values())


# ------------------------------------------------------------------------------------------------- out of memory


ON_GPU = torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.\nSee documentation")
ON_CPU = RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes.")


def small_memory(
    patch: pytest.MonkeyPatch, rows: int, error: Exception = ON_GPU, while_training: bool = True
) -> list[int]:
    """A device on which so many rows fit at a time; a list of how many were tried."""
    forward, tried = TrainingModule.forward, []

    def limited(self: TrainingModule, lesson: LabelledBatch, *weights: Tensor) -> Tensor:
        if self.training is while_training:
            tried.append(lesson.batch.batch_size)
            if lesson.batch.batch_size > rows:
                raise error
        return forward(self, lesson, *weights)

    patch.setattr(TrainingModule, "forward", limited)
    return tried


def wide(folder: Path, name: str = "run", **keys: Any) -> Recipe:
    return tiny(
        folder, name, train={"batch_tokens": 1600, "micro_batch_tokens": 0, "steps": 6, "num_workers": 0, **keys}
    )


def test_a_step_that_does_not_fit_says_what_to_lower(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small_memory(monkeypatch, 3)
    with pytest.raises(QkvError, match="does not fit into the memory of the device") as error:
        train(wide(tmp_path))
    for words in (
        "CUDA out of memory. Tried to allocate 2.00 GiB.",
        "train.micro_batch_tokens",
        '"auto"',
        "data.max_length",
    ):
        assert words in str(error.value)
    assert "train.batch_tokens = 1600" in str(error.value)
    assert "See documentation" not in str(error.value)


def test_an_evaluation_that_does_not_fit_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small_memory(monkeypatch, 0, while_training=False)
    with pytest.raises(QkvError, match="an evaluation does not fit into the memory"):
        train(wide(tmp_path))


@pytest.mark.parametrize("error", [ON_GPU, ON_CPU], ids=["GPU", "CPU"])
def test_parts_that_fit_are_found_and_give_what_parts_by_hand_give(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, error: Exception
) -> None:
    by_hand = wide(tmp_path, "by hand", micro_batch_tokens=400)
    train(by_hand)
    assert newest(by_hand.run).state["num_micro_batches"] == 4
    tried = small_memory(monkeypatch, 3, error)
    train(changed(by_hand, "auto", micro_batch_tokens="auto"))
    rows = tried[0]
    assert rows > 2 * 3, "one part and two are too large"
    assert sum(tried[-4:]) == rows, "the batch is as large as it was"
    assert difference(newest(by_hand.run), newest(tmp_path / "auto")) == ""
    assert log_of(by_hand.run) == log_of(tmp_path / "auto")
    assert "ran out of memory: from here on a batch is split into 4 micro-batches" in caplog.text


def test_parts_that_were_found_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Dropout is drawn for each part, so a run that goes on must cut its steps as it did."""
    small_memory(monkeypatch, 3)
    recipe = wide(tmp_path, "whole", micro_batch_tokens="auto", schedule="constant", warmup=0.0)
    train(recipe)
    train(changed(recipe, "longer", steps=3))
    with monkeypatch.context() as patch:
        tried = small_memory(patch, 10**9)
        go_on(tmp_path / "longer", "train.steps=6")
        assert max(tried) <= 3
    assert difference(newest(recipe.run), newest(tmp_path / "longer")) == ""


def test_where_not_even_a_row_fits_that_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tried = small_memory(monkeypatch, 0)
    with pytest.raises(QkvError, match="does not fit"):
        train(wide(tmp_path, micro_batch_tokens="auto"))
    assert tried[-1] == 1
