"""A resumed run equals a run that never stopped. A run that would differ cannot be resumed."""

import json
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from fault_runs import (
    Crash,
    CrashAfter,
    changed,
    difference,
    files_of,
    go_on,
    log_of,
    newest,
    notes_of,
    tiny,
    train,
)

from qkv.errors import QkvError
from qkv.train import loop
from qkv.train.recipe.schema import Recipe
from qkv.train.run.folder import RunFolder
from qkv.train.watch import RunStart, Watcher


def crash(recipe: Recipe, step: int) -> Path:
    with pytest.raises(Crash):
        train(recipe, watch=CrashAfter(step))
    return Path(recipe.run)


# ------------------------------------------------------------------------------------------- the same, bit for bit

CASES: dict[str, dict[str, Any]] = {
    "everything on": {},
    "a language model": {"kind": "causal_lm", "model": {"overrides": {"width": 16, "layers": 1, "dropout": 0.2}}},
    "masks drawn anew": {"kind": "masked_lm", "data": {"layout": "padded"}},
    "no workers, muon": {"train": {"num_workers": 0, "optimizer": "muon", "ema_decay": 0.0, "lr": 1e-3}},
    "three workers, lamb": {"train": {"num_workers": 3, "optimizer": "lamb"}},
    "bfloat16, sgd": {"train": {"precision": "bfloat16", "optimizer": "sgd", "micro_batch_tokens": 0}},
    "a recurrent model": {"model": {"family": "lstm"}},
    "recomputed, reports apart": {"train": {"gradient_checkpointing": True, "log_every": 4, "save_every": 3}},
}


@pytest.mark.parametrize("case", CASES)
def test_ten_steps_are_five_a_crash_and_five(case: str, tmp_path: Path) -> None:
    recipe = tiny(tmp_path, "whole", **{k: dict(v) if isinstance(v, dict) else v for k, v in CASES[case].items()})
    train(recipe)
    broken = crash(changed(recipe, "broken"), 7)
    saved = newest(broken).step
    assert 0 < saved < 7 + recipe.train.log_every
    go_on(broken)
    assert difference(newest(recipe.run), newest(broken)) == ""
    assert log_of(recipe.run) == log_of(broken)
    assert files_of(recipe.run) == files_of(broken)
    assert f"resuming from step {saved}" in notes_of(broken)


def test_a_run_that_saves_seldom_saves_by_the_clock_as_well(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And nothing else of it is changed: not what it ends with, not what is kept, not what is averaged."""
    seldom = {
        "save_every": 4,
        "eval_every": 100,
        "steps": 11,
        "average_checkpoints": 2,
        "keep_checkpoints": 2,
        "ema_decay": 0.0,
    }
    recipe = tiny(tmp_path, "whole", train=seldom)
    train(recipe)
    monkeypatch.setattr(loop, "MAX_SECONDS_BETWEEN_SAVES", 0.0)
    often = changed(recipe, "often")
    train(often)
    assert RunFolder(often.run).checkpoints.steps() == RunFolder(recipe.run).checkpoints.steps()
    assert files_of(often.run) == files_of(recipe.run)
    broken = crash(changed(recipe, "broken"), 7)
    assert newest(broken).step >= 6, "the last step that was due for saving is 4"
    go_on(broken)
    assert difference(newest(recipe.run), newest(broken)) == ""
    assert log_of(recipe.run) == log_of(broken)
    assert files_of(broken) == files_of(recipe.run)


def test_a_run_that_has_come_to_its_end_says_how_to_go_on(tmp_path: Path) -> None:
    recipe = tiny(tmp_path, "over", train={"steps": 2})
    train(recipe)
    assert go_on(recipe.run).run_end.step == 2
    assert f"to continue, raise train.steps: qkv train {recipe.run} train.steps=…" in notes_of(recipe.run)
    assert "resuming from" not in notes_of(recipe.run)
    assert go_on(recipe.run, "train.steps=3").run_end.step == 3
    assert "resuming from step 2" in notes_of(recipe.run)
    go_on(recipe.run, "train.steps=100", "train.minutes=1e-9")
    assert f"to continue, raise train.minutes: qkv train {recipe.run} train.minutes=…" in notes_of(recipe.run)
    lost = tiny(tmp_path, "lost", train={"steps": 9, "eval_every": 1, "patience": 1, "lr": 1e-30, "ema_decay": 0.0})
    end = train(lost).run_end
    assert end.reason == "patience"
    assert go_on(lost.run).run_end.step == end.step
    assert f"to continue, raise train.patience: qkv train {lost.run} train.patience=…" in notes_of(lost.run)


def test_other_dropout_would_be_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A control: were the random numbers those of a process that has just begun, the weights would differ."""
    recipe = tiny(tmp_path, "whole")
    train(recipe)
    broken = crash(changed(recipe, "broken"), 7)
    monkeypatch.setattr("qkv.train.step.seed_step", lambda *numbers: None)
    torch.manual_seed(0)
    go_on(broken)
    assert difference(newest(recipe.run), newest(broken)) != ""
    assert log_of(recipe.run) != log_of(broken)


def test_a_crash_before_the_first_checkpoint_begins_anew_with_a_clean_log(tmp_path: Path) -> None:
    recipe = tiny(tmp_path, "whole", train={"save_every": 0, "eval_every": 9})
    train(recipe)
    broken = crash(changed(recipe, "broken"), 7)
    assert RunFolder(broken).checkpoints.newest() is None
    go_on(broken)
    assert difference(newest(recipe.run), newest(broken)) == ""
    assert log_of(recipe.run) == log_of(broken)


def test_the_middle_of_an_epoch_is_found_again(tmp_path: Path) -> None:
    keys = {"steps": 0, "epochs": 2, "save_every": 4}
    recipe = tiny(tmp_path, "whole", train=keys)
    end = train(recipe).run_end
    assert end.reason == "epochs"
    middle = end.step // 4  # of the first epoch
    broken = crash(changed(recipe, "broken"), middle)
    assert newest(broken).state["data"]["item"] > 0
    assert newest(broken).state["data"]["epoch"] == 0
    go_on(broken)
    assert difference(newest(recipe.run), newest(broken)) == ""
    assert log_of(recipe.run) == log_of(broken)


def test_a_run_that_has_ended_is_left_as_it_is(tmp_path: Path) -> None:
    recipe = tiny(tmp_path)
    train(recipe)
    before, files = newest(recipe.run), files_of(recipe.run)
    again = go_on(recipe.run)
    assert (again.run_end.step, again.run_end.reason) == (10, "steps")
    assert difference(before, newest(recipe.run)) == ""
    assert files_of(recipe.run) == files


def test_more_steps_go_on_from_the_last(tmp_path: Path) -> None:
    """With a rate that does not depend on the budget, 5 + 5 steps are 10."""
    constant = {"schedule": "constant", "warmup": 0.0}
    recipe = tiny(tmp_path, "whole", train=constant)
    train(recipe)
    train(changed(recipe, "longer", steps=5))
    go_on(tmp_path / "longer", "train.steps=10")
    assert difference(newest(recipe.run), newest(tmp_path / "longer")) == ""


def test_the_number_of_workers_and_parts_may_change(tmp_path: Path) -> None:
    """Micro-batches of their own size give the same sums, rounding aside; workers change nothing at all."""
    recipe = tiny(tmp_path, "whole", model={"overrides": {"width": 16, "layers": 1, "dropout": 0.0}})
    train(recipe)
    broken = crash(changed(recipe, "broken"), 7)
    go_on(broken, "train.num_workers=2", "train.micro_batch_tokens=0")
    one, other = newest(recipe.run), newest(broken)
    assert one.state["data"] == other.state["data"]
    assert (one.state["num_micro_batches"], other.state["num_micro_batches"]) == (2, 1)
    for name in one.tensor_names():
        torch.testing.assert_close(one.read_tensor(name), other.read_tensor(name), rtol=1e-3, atol=1e-5)


# ------------------------------------------------------------------------------------------------ what is refused


@pytest.fixture(scope="module")
def begun(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Recipe]:
    """A run with a checkpoint, which nobody may go on with."""
    recipe = tiny(tmp_path_factory.mktemp("begun"), train={"num_workers": 0})
    crash(recipe, 7)
    yield recipe
    assert newest(recipe.run).step == 5, "a refusal leaves the run as it was"


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ("train.lr=0.5", "train.lr: 0.01 → 0.5"),
        ("train.seed=4", "train.seed: 0 → 4"),
        ("model.width=32", "model.width: 16 → 32"),
        ("objective.label_smoothing=0.1", "objective.label_smoothing: 0.0 → 0.1"),
        ("data.max_length=64", "data.max_length: 96 → 64"),
    ],
)
def test_another_recipe_is_refused_with_its_keys(begun: Recipe, change: str, told: str) -> None:
    with pytest.raises(QkvError, match="started with another recipe") as error:
        go_on(begun.run, change)
    assert told in str(error.value)
    assert "run=" in str(error.value)


def test_what_may_change_is_accepted(tmp_path: Path) -> None:
    recipe = tiny(tmp_path)
    crash(recipe, 7)
    changes = [
        "train.steps=8",
        "train.keep_checkpoints=2",
        "train.log_every=2",
        "train.eval_every=3",
        "train.patience=9",
    ]
    end = go_on(recipe.run, *changes, "train.on_nonfinite=skip", "train.num_workers=0").run_end
    assert end.step == 8
    assert 'on_nonfinite = "skip"' in (Path(recipe.run) / "recipe.toml").read_text()


def test_another_tokenizer_is_refused(tmp_path: Path) -> None:
    recipe = tiny(tmp_path)
    run = crash(recipe, 7)
    file = run / "tokenizer.json"
    pieces = json.loads(file.read_text())
    vocabulary = pieces["model"]["vocab"]
    one, other = (piece for piece in list(vocabulary)[-2:])
    vocabulary[one], vocabulary[other] = vocabulary[other], vocabulary[one]
    file.write_text(json.dumps(pieces))
    before = newest(run)
    with pytest.raises(QkvError, match="cannot be resumed") as error:
        go_on(run)
    assert "tokenizer: was '" in str(error.value)
    assert difference(before, newest(run)) == ""


def test_another_model_is_refused_with_the_difference(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same recipe may mean another model in a later version of this program."""
    recipe = tiny(tmp_path)
    run = crash(recipe, 7)
    config_for = __import__("qkv.tasks.prepare.prepare", fromlist=["config_for"]).build_config

    def newer(*arguments: Any) -> Any:
        config = config_for(*arguments)
        return replace(config, decoder=replace(config.decoder, norm_eps=1e-3))

    monkeypatch.setattr("qkv.tasks.prepare.prepare.build_config", newer)
    with pytest.raises(QkvError, match="because these have changed") as error:
        go_on(run)
    assert "model.decoder.norm_eps: was " in str(error.value)
    assert "is 0.001" in str(error.value)


def test_other_data_is_refused(tmp_path: Path) -> None:
    recipe = tiny(tmp_path)
    run = crash(recipe, 7)
    file = tmp_path / "pairs.tsv"
    file.write_text(file.read_text().replace("cat", "cot"))
    with pytest.raises(QkvError, match="cannot resume at the checkpoint's position in the data"):
        go_on(run)


def test_a_second_job_in_the_folder_is_refused_naming_the_first(tmp_path: Path) -> None:
    recipe = tiny(tmp_path)
    told: list[str] = []

    class Second(Watcher):
        def on_start(self, start: RunStart) -> None:
            with pytest.raises(QkvError) as error:
                go_on(recipe.run)
            told.append(str(error.value))

    train(changed(recipe, "alone"))
    train(recipe, watch=Second())
    assert f"another job is training here (process {os.getpid()} on " in told[0]
    assert difference(newest(tmp_path / "alone"), newest(recipe.run)) == "", "the first is not disturbed"


# --------------------------------------------------------------------------------------------- damaged checkpoints


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def test_a_damaged_newest_checkpoint_is_passed_over_with_a_note(tmp_path: Path) -> None:
    recipe = tiny(tmp_path, "whole", train={"save_every": 2})
    train(recipe)
    run = crash(changed(recipe, "broken"), 7)
    flip(run / "checkpoints" / "step-000000006" / "shard-00000-of-00001.safetensors")
    go_on(run)
    assert difference(newest(recipe.run), newest(run)) == ""
    assert log_of(recipe.run) == log_of(run)
    notes = notes_of(run)
    assert "step-000000006" in notes
    assert "resuming from step 4" in notes


def test_without_a_sound_checkpoint_nothing_is_trained_over(tmp_path: Path) -> None:
    recipe = tiny(tmp_path, train={"save_every": 2})
    run = crash(recipe, 7)
    for manifest in run.glob("checkpoints/step-*/manifest.json"):
        flip(manifest)
    with pytest.raises(QkvError, match="no checkpoint of this run can be read") as error:
        go_on(run)
    assert "step-000000006" in str(error.value)
    assert "step-000000004" in str(error.value)


def test_a_sample_that_the_clock_chose_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With no time for evaluations, the loss uses two pieces of the validation data, before a crash and after it."""
    monkeypatch.setattr("qkv.train.evaluation.MIN_SECONDS_WITHOUT_CLOCK", 0.0)
    monkeypatch.setattr("qkv.train.evaluation.PIECE_TOKENS", 64)
    keys = {"max_eval_fraction": 0.0, "eval_every": 2, "save_every": 1, "final": "best", "metric": "loss"}
    recipe = tiny(tmp_path, "whole", data={"valid_fraction": 0.4}, train=keys)
    train(recipe)
    assert newest(recipe.run).state["progress"]["eval_plan"]["loss_pieces"] == 2
    crashed = changed(recipe, "crashed")
    with pytest.raises(Crash):
        train(crashed, watch=CrashAfter(5))
    monkeypatch.setattr("qkv.train.evaluation.MIN_SECONDS_WITHOUT_CLOCK", 1e6)  # now there is all the time
    go_on(crashed.run)
    assert difference(newest(recipe.run), newest(crashed.run)) == ""
    assert log_of(crashed.run, "eval") == log_of(recipe.run, "eval")
    assert files_of(crashed.run) == files_of(recipe.run)


def test_without_the_limit_a_resumed_run_evaluates_everything(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("qkv.train.evaluation.MIN_SECONDS_WITHOUT_CLOCK", 0.0)
    monkeypatch.setattr("qkv.train.evaluation.PIECE_TOKENS", 64)
    keys = {"max_eval_fraction": 0.0, "eval_every": 2, "metric": "loss", "steps": 4}
    recipe = tiny(tmp_path, "limited", data={"valid_fraction": 0.4}, train=keys)
    train(recipe)
    end = go_on(recipe.run, "train.max_eval_fraction=1.0", "train.steps=6").run_end
    every = train(changed(recipe, "every", max_eval_fraction=1.0)).run_end
    assert newest(recipe.run).state["progress"]["eval_plan"]["loss_pieces"] == 0
    assert end.metrics != every.metrics, "the schedule of the rate differs"
    sampled, whole = (log_of(folder, "eval")[0]["loss"] for folder in (recipe.run, changed(recipe, "every").run))
    assert sampled != whole


@pytest.mark.parametrize(("value", "accepted"), [(0.0, True), (None, True), (0.5, False)])
def test_a_setting_of_a_newer_version_must_be_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, value: Any, accepted: bool
) -> None:
    recipe = tiny(tmp_path)
    run = crash(recipe, 7)
    fingerprint = __import__("qkv.tasks.train", fromlist=["train"]).resume_fingerprint

    def newer(prepared: Any) -> dict[str, Any]:
        return {**fingerprint(prepared), "model.decoder.new_in_a_later_version": value}

    monkeypatch.setattr("qkv.tasks.train.resume_fingerprint", newer)
    if accepted:
        assert go_on(run, "train.steps=8").run_end.step == 8
    else:
        with pytest.raises(QkvError, match=r"new_in_a_later_version: was None, is 0\.5"):
            go_on(run, "train.steps=8")
