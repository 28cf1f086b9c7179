"""`qkv verify-resume`: it passes where a run survives being killed, and names the first difference where not."""

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from fault_runs import changed, tiny, train, written

from qkv import cli
from qkv.errors import QkvError, UsageError
from qkv.tasks import verify_resume as verify
from qkv.tasks.train import open_recipe
from qkv.tasks.verify_resume import (
    KillAfterCheckpoint,
    compare_checkpoints,
    compare_logs,
    make_short_recipe,
    newest_checkpoint,
    verify_resume,
)
from qkv.train import step
from qkv.train.recipe.recipe_file import read


class Forked:
    """Stands in for a process of its own: a copy of this one, which need not load torch again."""

    def __init__(self, module: str, *arguments: object) -> None:
        self.pid = os.fork()
        if self.pid:
            return
        code = 1
        try:
            with open(os.devnull, "w") as nothing:
                os.dup2(nothing.fileno(), 1)
                os.dup2(nothing.fileno(), 2)
            if module == "qkv":
                code = cli.run_command(list(map(str, arguments)))
            else:
                file, run, save = arguments
                train(open_recipe(str(file), [f"run={run}"]), watch=KillAfterCheckpoint(Path(str(run)), int(str(save))))
        finally:
            os._exit(code)

    def communicate(self, timeout: float) -> tuple[str, str]:
        self.returncode = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        return "", ""


def test_a_sound_recipe_is_the_same(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recipe = written(tiny(tmp_path, train={"num_workers": 1}))
    code = cli.run_command(["verify-resume", str(recipe), "--steps", "6", "--json"])
    caught = capsys.readouterr()
    assert code == 0, caught.err
    found = json.loads(caught.out)
    assert (found["identical"], found["difference"], found["steps"], found["num_log_lines"]) == (True, "", 6, 6)
    assert found["killed_after"] == 3, "the last checkpoint was that of step 2"
    assert found["num_tensors"] > 20
    assert "killed after step 3" in caught.err
    assert not (tmp_path / "run").exists(), "the user's own run is not touched"


def test_a_run_that_depends_on_chance_is_found_out_with_the_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run_qkv: Any
) -> None:
    """From its third step on, this dropout is drawn by nobody's seed."""
    own = step.seed_step

    def uneven(seed: int, number: int, part: int, rank: int) -> None:
        own(seed, number, part, rank)
        if number >= 2:
            torch.manual_seed(int.from_bytes(os.urandom(4), "little"))

    monkeypatch.setattr(verify, "start_process", Forked)
    recipe = str(written(tiny(tmp_path)))
    assert cli.run_command(["verify-resume", recipe, "--steps", "5"]) == 0, "a control: it is not the forking"
    monkeypatch.setattr(step, "seed_step", uneven)
    captured = run_qkv(["verify-resume", recipe, "--steps", "5"], 1)
    assert "the resumed run differs: at step 3 of the log, loss is " in captured.err


def test_what_differs_is_named(tmp_path: Path) -> None:
    recipe = tiny(tmp_path, "one", train={"num_workers": 0})
    train(recipe)
    train(changed(recipe, "other", seed=1))
    train(changed(recipe, "shorter", steps=9))
    one, other, shorter = (tmp_path / name for name in ("one", "other", "shorter"))
    tensors, told = compare_checkpoints(newest_checkpoint(one), newest_checkpoint(other))
    assert tensors > 20
    assert "numbers differ, by up to" in told
    assert told.split(":")[0] in newest_checkpoint(one).tensor_names()
    assert (
        compare_checkpoints(newest_checkpoint(one), newest_checkpoint(shorter))[1]
        == "one run ended at step 10, the other at 9"
    )
    assert "at step 1 of the log, loss is" in compare_logs(one, other)[1]
    assert compare_checkpoints(newest_checkpoint(one), newest_checkpoint(one)) == (tensors, "")
    assert compare_logs(one, one) == (10, "")


def test_a_misspelt_recipe_is_told_before_anything_starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verify, "start_process", lambda *arguments: pytest.fail("a process was started"))
    with pytest.raises(UsageError, match="no such recipe"):
        verify_resume("nothing.toml", [], tmp_path)
    with pytest.raises(UsageError, match="did you mean 'steps'"):
        verify_resume(str(written(tiny(tmp_path))), ["train.stpes=3"], tmp_path)
    with pytest.raises(UsageError, match="at least 4"):
        verify_resume(str(written(tiny(tmp_path))), [], tmp_path, steps=3)


def test_a_recipe_is_shortened_and_else_the_same(tmp_path: Path) -> None:
    recipe = tiny(tmp_path, train={"minutes": 5.0, "epochs": 2, "patience": 3})
    short = make_short_recipe(str(written(recipe)), ["train.lr=0.5"], 12, 4)
    assert (short.train.steps, short.train.minutes, short.train.epochs, short.train.save_every) == (12, 0.0, 0, 4)
    assert short.train.lr == 0.5
    for section in ("data", "tokenizer", "model", "objective"):
        assert getattr(short, section) == getattr(read(written(recipe)), section)


def test_a_run_that_fails_is_told_with_what_it_said(tmp_path: Path) -> None:
    recipe = tiny(tmp_path)
    broken = replace(recipe, data=replace(recipe.data, train=str(tmp_path / "gone.tsv")))
    with pytest.raises(QkvError, match=r"(?s)exit code.*gone\.tsv"):
        verify_resume(str(written(broken)), [], tmp_path)
