"""Training that is killed at random moments, stopped by signals, on a full disk, or that loses a process."""

import json
import os
import resource
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from fault_runs import changed, difference, files_of, go_on, log_of, newest, tiny, train, written

from qkv.errors import QkvError
from qkv.tasks.train import ValidationMetrics
from qkv.train.loop import StoppedBySignal
from qkv.train.recipe.schema import Recipe
from qkv.train.run.folder import RunFolder
from qkv.train.watch import EvalReport, StepReport, Watcher

HERE = Path(__file__).parent
KILLS = 12

pytestmark = pytest.mark.skipif(os.name != "posix", reason="signals and limits as POSIX has them")


def start(*arguments: object) -> subprocess.Popen[str]:
    """`qkv …` in a process of its own."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "qkv", *map(str, arguments)]
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def ended(process: subprocess.Popen[str], within: float = 60) -> tuple[int, str]:
    try:
        _, said = process.communicate(timeout=within)
    finally:
        process.kill()
    assert "Traceback" not in said, said
    return process.returncode, said


def wait_for_step(run: str, step: int, process: subprocess.Popen[str]) -> None:
    end = time.monotonic() + 60
    while time.monotonic() < end and process.poll() is None:
        if any(line["step"] >= step for line in RunFolder(run).log_records() if line["kind"] == "step"):
            return
        time.sleep(0.01)
    raise AssertionError(f"step {step} was never reached: {process.communicate(timeout=10)}")


def wait_for_checkpoint(run: str, process: subprocess.Popen[str]) -> None:
    end = time.monotonic() + 60
    while time.monotonic() < end and process.poll() is None:
        if RunFolder(run).checkpoints.steps():
            return
        time.sleep(0.01)
    raise AssertionError(f"nothing was ever saved: {process.communicate(timeout=10)}")


# ---------------------------------------------------------------------------------------------------------- killed


@pytest.fixture(scope="module")
def killed() -> dict[str, list[dict[str, Any]]]:
    """Runs that are killed again and again until they get through, as `kill_training.py` does it."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(HERE.parent / "tasks")}
    done = subprocess.run(
        [sys.executable, HERE / "kill_training.py", str(KILLS), "--json"],
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout)


def test_runs_that_were_killed_end_as_the_undisturbed_one(killed: dict[str, list[dict[str, Any]]]) -> None:
    assert len(killed["kills"]) == KILLS
    assert [kill for kill in killed["kills"] if kill["problem"]] == []
    assert killed["finished"]
    assert [run for run in killed["finished"] if run["difference"]] == []


def test_runs_were_killed_while_they_trained(killed: dict[str, list[dict[str, Any]]]) -> None:
    """A control: had every kill come before the first step, it would have proved nothing."""
    places = Counter(kill["where"] for kill in killed["kills"])
    assert places["between checkpoints"] + places["while saving"] >= 3


# --------------------------------------------------------------------------------------------------- asked to stop


class Ask(Watcher):
    """Sends a signal to its own process after a step, as a scheduler or Ctrl-C would."""

    def __init__(self, number: int, step: int) -> None:
        self.number, self.at = number, step

    def on_step(self, report: StepReport) -> None:
        if report.step == self.at:
            os.kill(os.getpid(), self.number)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Recipe:
    recipe = tiny(tmp_path_factory.mktemp("undisturbed"), "whole", train={"metric": "loss", "patience": 9})
    train(recipe)
    return recipe


def test_being_asked_to_stop_changes_nothing_of_what_is_averaged(tmp_path: Path) -> None:
    """The checkpoint that a stop leaves is none of the last four."""
    recipe = tiny(tmp_path, "whole", train={"average_checkpoints": 4, "save_every": 2, "ema_decay": 0.0})
    train(recipe)
    asked = changed(recipe, "asked")
    for step in (3, 6):
        with pytest.raises(StoppedBySignal):
            train(asked, watch=Ask(signal.SIGINT, step))
    assert newest(asked.run).step == 7
    go_on(asked.run)
    assert RunFolder(asked.run).checkpoints.steps() == RunFolder(recipe.run).checkpoints.steps() == [4, 6, 8, 10]
    assert files_of(asked.run) == files_of(recipe.run)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
@pytest.mark.parametrize("step", [4, 6, 10], ids=["when an evaluation is due", "any step", "the last step"])
def test_a_signal_ends_a_run_after_a_checkpoint_and_it_goes_on_exactly(
    undisturbed: Recipe, number: int, code: int, step: int
) -> None:
    recipe = changed(undisturbed, f"asked{number}{step}")
    with pytest.raises(StoppedBySignal) as stopped:
        train(recipe, watch=Ask(number, step - 1))
    assert newest(recipe.run).step == step, "the step in which the signal came is finished"
    assert stopped.value.exit_code == code
    assert str(stopped.value) == f"stopped at step {step} with a checkpoint; resume with: qkv train {recipe.run}"
    assert not (Path(recipe.run) / "model.safetensors").exists()
    go_on(recipe.run)
    assert difference(newest(undisturbed.run), newest(recipe.run)) == ""
    assert log_of(recipe.run) == log_of(undisturbed.run), "the evaluation that was put off is made up for"
    assert files_of(recipe.run) == files_of(undisturbed.run)


@pytest.mark.parametrize(("evaluation", "step"), [(2, 8), (3, 10)], ids=["in the middle", "the last one"])
def test_a_signal_ends_an_evaluation_and_the_run_goes_on_exactly(
    undisturbed: Recipe, monkeypatch: pytest.MonkeyPatch, evaluation: int, step: int
) -> None:
    usual, calls = ValidationMetrics.__call__, iter(range(1, 100))

    def slow(self: ValidationMetrics, *arguments: Any, **options: Any) -> Any:
        if next(calls) == evaluation:
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(60)
        return usual(self, *arguments, **options)

    monkeypatch.setattr(ValidationMetrics, "__call__", slow)
    recipe, begin = changed(undisturbed, f"evaluating{step}"), time.monotonic()
    with pytest.raises(StoppedBySignal, match=f"stopped at step {step} with a checkpoint"):
        train(recipe)
    assert time.monotonic() - begin < 50, "the evaluation was not finished"
    state = newest(recipe.run).state["progress"]
    assert (state["step"], state["pending_eval"]) == (step, step < 10)
    go_on(recipe.run)
    assert difference(newest(undisturbed.run), newest(recipe.run)) == ""
    assert log_of(recipe.run) == log_of(undisturbed.run)
    assert files_of(recipe.run) == files_of(undisturbed.run)


@pytest.mark.parametrize("where", ["qkv.tasks.train.prepare", "qkv.train.loop.take_step"])
def test_before_there_is_anything_to_save_a_signal_ends_a_run_at_once(
    undisturbed: Recipe, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    def slow(*arguments: Any, **options: Any) -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(60)

    recipe = changed(undisturbed, f"early-{where}")
    monkeypatch.setattr(where, slow)
    with pytest.raises(
        StoppedBySignal, match=rf"stopped; nothing is lost\. Start or resume with: qkv train {recipe.run}"
    ):
        train(recipe)
    monkeypatch.undo()
    train(recipe)
    assert difference(newest(undisturbed.run), newest(recipe.run)) == ""


def test_the_command_line_ends_as_shells_expect_and_says_how_to_go_on(tmp_path: Path) -> None:
    recipes = [tiny(tmp_path, name, train={"steps": 10**6, "eval_every": 10**6}) for name in ("int", "term")]
    processes = [start("train", written(recipe)) for recipe in recipes]
    for recipe, process, number in zip(recipes, processes, (signal.SIGINT, signal.SIGTERM), strict=True):
        wait_for_step(recipe.run, 2, process)
        process.send_signal(number)
    for recipe, process, code in zip(recipes, processes, (130, 143), strict=True):
        found, said = ended(process)
        assert found == code
        step = newest(recipe.run).step
        last = said.splitlines()[-1]
        assert last == f"qkv: stopped at step {step:,} with a checkpoint; resume with: qkv train {recipe.run}"


# ------------------------------------------------------------------------------------------------------------ full


class FillUp(Watcher):
    """From a moment on, when what was being written is whole, no file may grow beyond so many bytes."""

    def __init__(self, most: int, step: int = -1, evaluation: int = -1) -> None:
        self.most, self.at, self.evaluation = most, step, evaluation

    def on_step(self, report: StepReport) -> None:
        if report.step == self.at:
            self.fill()

    def on_evaluate(self, report: EvalReport) -> None:
        if report.step == self.evaluation:
            self.fill()

    def fill(self) -> None:
        for thread in threading.enumerate():
            if thread.name.startswith("checkpoint "):
                thread.join()
        resource.setrlimit(resource.RLIMIT_FSIZE, (self.most, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))


def trained_until_full(recipe: Recipe, watch: FillUp) -> str:
    """What a run says when the disk is full; then there is room again."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        with pytest.raises(QkvError) as error:
            train(recipe, watch=watch)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    return str(error.value)


@pytest.mark.parametrize("save", [3, 9], ids=["told at the next save", "told at the end"])
def test_a_disk_that_fills_up_ends_the_run_and_leaves_it_whole(tmp_path: Path, save: int) -> None:
    recipe = tiny(tmp_path, "whole", train={"save_every": save, "eval_every": 100, "steps": 19})
    train(recipe)
    full = changed(recipe, "full")
    said = trained_until_full(full, FillUp(20_000, step=save + 1))
    assert f"the checkpoint of step {2 * save} could not be written (File too large)" in said
    assert (
        "Older checkpoints are intact: free some space, or lower train.keep_checkpoints, and start the run again"
        in said
    )
    assert RunFolder(full.run).checkpoints.steps() == [save]
    go_on(full.run)
    assert difference(newest(recipe.run), newest(full.run)) == ""
    assert log_of(recipe.run) == log_of(full.run)


def test_a_disk_that_is_full_in_the_end_costs_no_training(tmp_path: Path) -> None:
    recipe = tiny(tmp_path, "whole")
    train(recipe)
    full = changed(recipe, "full")
    said = trained_until_full(full, FillUp(20_000, evaluation=10))
    assert f"{full.run}: could not be written" in said
    assert "File too large" in said
    assert newest(full.run).step == 10
    go_on(full.run)
    assert files_of(recipe.run) == files_of(full.run)


# ----------------------------------------------------------------------------------------------- several processes


@pytest.mark.skipif(not dist.is_available(), reason="this torch cannot talk to others")
def test_one_process_then_two_then_one(tmp_path: Path) -> None:
    """The order of the examples is the same, and so is the loss but for rounding."""
    plain = {"overrides": {"width": 16, "layers": 1, "heads": 2, "dropout": 0.0}}
    keys = {"schedule": "constant", "warmup": 0.0, "batch_tokens": 768, "micro_batch_tokens": 0}
    recipe = tiny(tmp_path, "whole", model=plain, train={**keys, "steps": 15})
    train(recipe)
    run = changed(recipe, "changing", steps=5)
    train(run)
    process = start("train", run.run, "train.steps=10", "--processes", 2)
    assert ended(process)[0] == 0
    assert newest(run.run).world_size == 2
    go_on(run.run, "train.steps=15")
    one, other = newest(recipe.run), newest(run.run)
    assert one.state["data"] == other.state["data"], "the place in the data"
    ours, theirs = log_of(recipe.run, "step"), log_of(run.run, "step")
    assert [line["tokens"] for line in ours] == [line["tokens"] for line in theirs], "the examples of every step"
    assert [line["loss"] for line in ours] == pytest.approx([line["loss"] for line in theirs], abs=1e-5)
    for name in one.tensor_names():
        torch.testing.assert_close(one.read_tensor(name), other.read_tensor(name), rtol=1e-4, atol=1e-5)


@pytest.mark.skipif(not dist.is_available(), reason="this torch cannot talk to others")
def test_a_process_that_is_killed_ends_the_others_and_the_run_goes_on(tmp_path: Path) -> None:
    recipe = tiny(tmp_path, train={"steps": 10**6, "eval_every": 10**6, "batch_tokens": 768, "micro_batch_tokens": 0})
    process = start("train", written(recipe), "--processes", 2)
    wait_for_checkpoint(recipe.run, process)
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    if not children.exists():
        process.send_signal(signal.SIGTERM)
        pytest.skip("this system does not tell who started whom")
    second = max(map(int, children.read_text().split()))
    began = time.monotonic()
    os.kill(second, signal.SIGKILL)
    code, said = ended(process)
    assert time.monotonic() - began < 10
    assert code == 137
    assert "rank 1 of 2 was killed by SIGKILL" in said
    step = newest(recipe.run).step
    assert step >= 5
    assert go_on(recipe.run, f"train.steps={step + 2}").run_end.step == step + 2


def test_a_recipe_that_cannot_be_trained_ends_all_processes_at_once(tmp_path: Path) -> None:
    recipe = replace(tiny(tmp_path), data=replace(tiny(tmp_path).data, train=str(tmp_path / "nothing.tsv")))
    code, said = ended(start("train", written(recipe), "--processes", 2))
    assert code in (1, 2)
    assert "nothing.tsv" in said
