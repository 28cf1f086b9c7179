"""Resuming a finished or an unfinished run later: nothing is lost."""

import errno
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fault_runs import Crash, CrashAfter, changed, files_of, go_on, log_of, notes_of, tiny, train

import qkv
from qkv.errors import QkvError
from qkv.render.learning_curves import draw_curves
from qkv.tasks.train import open_recipe
from qkv.train.checkpoint.files import step_folder_name
from qkv.train.progress import is_better
from qkv.train.recipe.schema import Recipe
from qkv.train.run.folder import METRICS, RunFolder, resume_command
from qkv.train.run.load_checkpoint import load_newest
from qkv.train.watch import RunEnd, Watcher

PLAIN = {"ema_decay": 0.0, "num_workers": 0, "micro_batch_tokens": 0}


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Recipe:
    """A run of eight steps that was evaluated at 3 and 6, and better each time."""
    folder = tmp_path_factory.mktemp("later")
    recipe = tiny(folder, "finished", train={**PLAIN, "steps": 8, "eval_every": 3, "save_every": 2, "metric": "loss"})
    train(recipe)
    return recipe


def copied(recipe: Recipe, name: str) -> str:
    run = str(Path(recipe.run).parent / name)
    shutil.copytree(recipe.run, run)
    return run


def damage(run: str, step: int) -> None:
    shard = next((Path(run) / "checkpoints" / step_folder_name(step)).glob("*.safetensors"))
    data = bytearray(shard.read_bytes())
    data[-1] ^= 1
    shard.write_bytes(data)


def test_the_last_weights_may_turn_out_to_be_the_best(finished: Recipe) -> None:
    """They had not been compared when the run ended with `final = "last"`."""
    run = copied(finished, "best")
    losses = {line["step"]: line["loss"] for line in log_of(run, "eval")}
    assert losses[8] < losses[6] < losses[3]
    before = files_of(run)
    go_on(run, "train.final=best")
    best = RunFolder(run).checkpoints.best()
    assert best.step == 8
    assert files_of(run) == before
    assert "which were the best" not in notes_of(run)


def test_where_a_run_ended_counts_when_it_is_given_more(finished: Recipe) -> None:
    """An evaluation that was due there is made up for, as in a run that had not ended."""
    short, long = (changed(finished, name, steps=steps, schedule="constant") for name, steps in (("a", 6), ("b", 9)))
    train(short)
    go_on(short.run, "train.steps=9")
    train(long)
    ours, theirs = (RunFolder(run).checkpoints.open_step(9).state["progress"] for run in (short.run, long.run))
    assert {**ours, "seconds": 0} == {**theirs, "seconds": 0}


def test_fewer_checkpoints_are_kept_at_once(finished: Recipe) -> None:
    """Not when the next one has been written, for which there may be no room."""
    run = copied(finished, "fewer")
    assert RunFolder(run).checkpoints.steps() == [4, 6, 8]
    with pytest.raises(Crash):
        go_on(run, "train.keep_checkpoints=1", "train.steps=20", watch=CrashAfter(9))
    assert RunFolder(run).checkpoints.steps() == [6, 8]  # the best, and the last


def test_what_is_damaged_stays_until_there_is_a_new_one(finished: Recipe) -> None:
    """A disk that could not be read for a moment looks like that, too."""
    run = copied(finished, "damaged")
    damage(run, 8)
    with pytest.raises(Crash):
        go_on(run, "train.keep_checkpoints=1", watch=CrashAfter(7))
    assert RunFolder(run).checkpoints.steps() == [6, 8]
    go_on(run)
    assert RunFolder(run).checkpoints.steps() == [6, 8]
    assert files_of(run) == files_of(finished.run)


def test_a_model_whose_checkpoints_are_gone_is_not_trained_over(finished: Recipe) -> None:
    run = copied(finished, "gone")
    shutil.rmtree(Path(run) / "checkpoints")
    before = files_of(run), (Path(run) / METRICS).read_bytes()
    with pytest.raises(QkvError, match=r"has a model but no checkpoints.*model\.from"):
        go_on(run, "train.steps=9")
    assert (files_of(run), (Path(run) / METRICS).read_bytes()) == before
    for name in ("config.json", "model.safetensors"):
        (Path(run) / name).unlink()
    go_on(run)
    assert "has no checkpoint: it starts again" in notes_of(run)


def test_a_mean_leaves_out_what_is_damaged(finished: Recipe) -> None:
    run = copied(finished, "mean")
    damage(run, 4)
    go_on(run, "train.average_checkpoints=3")
    assert "damaged" in notes_of(run)
    assert "the average of 2 checkpoints, steps 6 to 8" in notes_of(run)


def test_a_log_that_cannot_be_written_is_told_of_once(tmp_path: Path) -> None:
    """The file tries again as it is closed, and would hide what was said."""

    class Full:
        def write(self, data: bytes) -> None: ...

        def flush(self) -> None:
            raise OSError(errno.ENOSPC, "No space left on device")

        close = flush

        def fileno(self) -> int:
            return 10**6

    def fails(what: Callable[[RunFolder], None]) -> None:
        with RunFolder(tmp_path / "run").lock() as folder:
            folder._metrics = Full()  # type: ignore[assignment]
            what(folder)

    with pytest.raises(QkvError, match=r"metrics\.jsonl: cannot be written \(No space"):
        fails(lambda folder: folder.append_log({"kind": "step"}))
    with pytest.raises(QkvError, match=r"metrics\.jsonl: cannot be written"):  # the lock was given back
        fails(lambda folder: folder.sync_log())


def test_what_is_refused_changes_no_recipe(finished: Recipe) -> None:
    run = copied(finished, "refused")
    before = (Path(run) / "recipe.toml").read_text()
    with pytest.raises(QkvError):
        go_on(run, 'train.trackers=["wandb"]', "train.steps=20")
    pairs = Path(finished.run).parent / "pairs.tsv"
    text = pairs.read_text()
    pairs.write_text(text + "one more\tMORE ONE\n")
    try:
        with pytest.raises(QkvError, match="data"):
            go_on(run, "train.steps=20")
    finally:
        pairs.write_text(text)
    assert (Path(run) / "recipe.toml").read_text() == before
    go_on(run, "train.steps=9")
    assert "steps = 9" in (Path(run) / "recipe.toml").read_text()


def test_a_run_has_come_to_its_end_when_its_model_is_there(finished: Recipe) -> None:
    run = copied(finished, "ended")

    class Dies(Watcher):
        def on_end(self, end: RunEnd) -> None:
            raise Crash

    with pytest.raises(Crash):
        go_on(run, "train.steps=10", watch=Dies())
    (note,) = qkv.load(run).notes
    assert "this is the model of step 8, and the run was continued since" in note
    go_on(run)
    assert qkv.load(run).notes == []


def test_a_checkpoint_that_vanishes_is_no_reason_to_give_up(finished: Recipe, monkeypatch: pytest.MonkeyPatch) -> None:
    """While a run goes on, a listing may hold nothing but what is just going."""
    run = copied(finished, "vanishing")
    (Path(run) / "config.json").unlink()
    folder = RunFolder(run)
    real, listed = folder.checkpoints.steps(), iter([[1], [], [2]])
    monkeypatch.setattr(type(folder.checkpoints), "steps", lambda self: next(listed, real))
    assert load_newest(folder, "cpu", None).notes[0].endswith("these are the weights of step 8")
    monkeypatch.setattr(type(folder.checkpoints), "steps", lambda self: [1])
    with pytest.raises(QkvError, match="deletes them before they are read"):
        load_newest(folder, "cpu", None)


def test_other_held_out_data_is_told_of(finished: Recipe) -> None:
    held_out = Path(finished.run).parent / "held out.tsv"
    held_out.write_text("source\ttarget\nthe cat\tCAT THE\na dog\tDOG A\n")
    recipe = replace(changed(finished, "other", steps=6), data=replace(finished.data, valid=str(held_out)))
    train(recipe)
    go_on(recipe.run, "train.steps=7")
    assert "validation data has changed" not in notes_of(recipe.run)
    held_out.write_text("source\ttarget\nthe cat\tCAT THE\nBob runs\tRUNS BOB\n")
    go_on(recipe.run, "train.steps=9")
    assert "the validation data has changed" in notes_of(recipe.run)
    assert RunFolder(recipe.run).checkpoints.open_step(9).state["progress"]["best_value"] is None


def test_a_line_that_cannot_be_read_spoils_nothing(finished: Recipe, run_qkv: Any) -> None:
    run = Path(copied(finished, "line"))
    lines = (run / METRICS).read_text().splitlines()
    (run / METRICS).write_text("\n".join([lines[0], "garbage", '{"step": 3}', *lines[1:]]) + "\n")
    draw_curves({"a": run}, run / "a.svg")
    assert "<svg" in (run / "a.svg").read_text()
    qkv.load(run)
    (run / "curves.svg").mkdir()
    assert "curves could not be drawn" in run_qkv(["train", str(run)]).out


def test_a_run_is_known_by_what_it_has_written(finished: Recipe) -> None:
    """Not by its notes on who ran it, and where: a copy without these is not its original."""
    run = copied(finished, "copy")
    for name in ("env.json", ".lock.json", ".lock"):
        (Path(run) / name).unlink(missing_ok=True)
    assert open_recipe(run).run == run


def test_what_to_type_can_be_typed() -> None:
    assert resume_command("runs/a") == "qkv train runs/a"
    assert resume_command("my runs/a $1", 2) == "qkv train 'my runs/a $1' --processes 2"


def test_a_tie_with_no_number_is_won_by_a_number() -> None:
    assert is_better("exact_match", 0.0, 0.0, loss=4.0, best_loss=float("nan"))
    assert not is_better("exact_match", 0.0, 0.0, loss=float("nan"), best_loss=float("nan"))
    assert not is_better("exact_match", 0.0, 0.0, loss=float("nan"), best_loss=4.0)


@pytest.mark.parametrize("files", ["other.tsv", {"source": "a.txt", "target": "b.txt"}])
def test_test_files_may_change_on_the_way(finished: Recipe, files: Any) -> None:
    run = copied(finished, f"test {len(files)}")
    changes = [f"data.test.{k}={v}" for k, v in files.items()] if isinstance(files, dict) else [f"data.test={files}"]
    assert open_recipe(run, changes).data.test == files
    with pytest.raises(QkvError, match="another recipe"):
        open_recipe(run, ["data.max_length=64"])
