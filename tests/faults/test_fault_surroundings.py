"""The surroundings of a run change: its files are replaced, the clock jumps, the temporary folder is full."""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from fault_runs import difference, files_of, newest, tiny, train

import qkv
from qkv.data.cache import file_hashes
from qkv.errors import QkvError
from qkv.tasks.train import open_recipe
from qkv.train.checkpoint.files import MANIFEST_FILE, read_checksummed, write_checksummed
from qkv.train.run.folder import METRICS
from qkv.train.watch import StepReport, Watcher

PLAIN = {"ema_decay": 0.0, "num_workers": 0, "micro_batch_tokens": 0, "steps": 6, "save_every": 2, "eval_every": 100}


class AtStep(Watcher):
    """Calls a function after each step."""

    def __init__(self, call: Callable[[int], object]) -> None:
        self.call = call

    def on_step(self, report: StepReport) -> None:
        self.call(report.step)


def test_a_data_file_that_is_replaced_during_a_run_changes_nothing(tmp_path: Path) -> None:
    """The run reads its token cache, which was complete before the first step."""
    whole = tiny(tmp_path, "whole", train=PLAIN)
    train(whole)

    def replace(step: int) -> None:
        (tmp_path / "other").write_text("source\ttarget\n" + "".join(f"x{i}\ty\n" for i in range(99)))
        os.replace(tmp_path / "other", tmp_path / "pairs.tsv")

    changing = tiny(tmp_path, "changing", train=PLAIN)
    train(changing, watch=AtStep(replace))
    assert difference(newest(changing.run), newest(whole.run)) == ""
    with pytest.raises(QkvError, match="the training data has changed"):
        train(open_recipe(changing.run, ["train.steps=9"]))


def test_a_data_file_that_changes_while_it_is_read_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = tiny(tmp_path, train=PLAIN)
    hashed = file_hashes.FileHashes.get

    def change_after(self: file_hashes.FileHashes, path: Path, *more: object) -> str:
        found = hashed(self, path, *more)
        with path.open("a") as file:
            file.write("one more\tline\n")
        return found

    monkeypatch.setattr(file_hashes.FileHashes, "get", change_after)
    with pytest.raises(QkvError, match="changed while it was read"):
        train(recipe)


def test_a_clock_that_jumps_changes_neither_the_budget_nor_the_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    offset, real = [0.0], time.time
    monkeypatch.setattr(time, "time", lambda: real() + offset[0])
    monkeypatch.setattr(time, "time_ns", lambda: int((real() + offset[0]) * 1e9))

    def jump(step: int) -> None:
        offset[0] = (-1e9, 1e9, 0.0)[step % 3]

    recipe = tiny(tmp_path, train={**PLAIN, "minutes": 60.0})
    train(recipe, watch=AtStep(jump))
    lines = [json.loads(line) for line in (Path(recipe.run) / METRICS).read_text().splitlines()]
    seconds = [line["seconds"] for line in lines if "seconds" in line]
    assert len([line for line in lines if line["kind"] == "step"]) == PLAIN["steps"]
    assert seconds == sorted(seconds)
    assert 0 <= seconds[-1] < 3600


def test_a_checkpoint_of_a_newer_version_is_never_overwritten(tmp_path: Path) -> None:
    recipe = tiny(tmp_path, train=PLAIN)
    train(recipe)
    manifest = Path(recipe.run) / "checkpoints" / "step-000000006" / MANIFEST_FILE
    write_checksummed(manifest, {**read_checksummed(manifest), "version": 3})
    before = files_of(recipe.run), manifest.read_bytes()
    with pytest.raises(QkvError, match="written by a newer qkv"):
        train(open_recipe(recipe.run, ["train.steps=9"]))
    assert (files_of(recipe.run), manifest.read_bytes()) == before


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="there is no full device to write to")
def test_a_full_disk_for_the_output_is_reported() -> None:
    with open("/dev/full", "w") as full:
        command = [sys.executable, "-m", "qkv", "info", "bert-tiny"]
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, timeout=120)
    assert done.returncode != 0
    assert "No space left on device" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_run_needs_no_temporary_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*arguments: object, **options: object) -> str:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(tempfile, "mkdtemp", full)
    monkeypatch.setattr(tempfile, "mkstemp", full)
    recipe = tiny(tmp_path, train=PLAIN)
    train(recipe)
    qkv.load(recipe.run).generate("the", max_tokens=2)
