"""Studies: variants of a recipe over several seeds, matched, tuned, killed and continued."""

import json
import shlex
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

import qkv
from qkv.blocks.parts import PARTS
from qkv.cli import run_command
from qkv.errors import QkvError, UsageError
from qkv.models.tables.summary import summarise_model
from qkv.render.study import study_page, write_study_page
from qkv.tasks.study import StudyPlan, create, extend, open_study, read_study, run_study
from qkv.tasks.study import run as study_runs
from qkv.tasks.study.engine import run_missing
from qkv.tasks.study.match import count_flops, match_variants
from qkv.tasks.study.plan import split_choices
from qkv.train.run.folder import RunFolder

RECIPE = """
[data]
train = "text.txt"
max_length = 32
valid_fraction = 0.2
cache_dir = "cache"
[tokenizer]
kind = "char"
[model]
width = 16
layers = 1
heads = 2
[objective]
kind = "causal_lm"
[train]
steps = 6
batch_tokens = 128
device = "cpu"
lr = 3e-3
"""
VARY = {"model.feedforward": ("gelu", "swiglu")}


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    words = ["the", "a", "cat", "dog", "house", "tree", "runs", "sleeps", "green", "red"]
    lines = [" ".join(words[i * k % 10] for k in range(2, 6)) + f" {i}" for i in range(60)]
    (tmp_path / "text.txt").write_text("\n".join(lines) + "\n")
    (tmp_path / "test.jsonl").write_text("".join(json.dumps({"text": line}) + "\n" for line in lines[:20]))
    (tmp_path / "base.toml").write_text(RECIPE)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def plan(**changes: Any) -> StudyPlan:
    return StudyPlan(**{"recipe": "base.toml", "vary": VARY, "seeds": 2, **changes})


def weights(path: Path) -> dict[str, Tensor]:
    return dict(load_file(path / "model.safetensors"))


def test_a_study_trains_each_variant_with_each_seed_and_keeps_finished_runs(folder: Path) -> None:
    study = create(folder / "s", plan())
    result = run_study(study)
    assert result.is_complete
    runs = [path.name for path in sorted((folder / "s").iterdir()) if path.is_dir()]
    assert runs == ["gelu-0", "gelu-1", "swiglu-0", "swiglu-1"]
    made = {name: (folder / "s" / name / "model.safetensors").stat().st_mtime_ns for name in runs}
    more = run_study(extend(open_study(folder / "s"), 3))
    assert made == {name: (folder / "s" / name / "model.safetensors").stat().st_mtime_ns for name in runs}
    assert [len(row.values) for row in more.rows] == [3, 3]
    assert [row.values[:2] for row in more.rows] == [row.values for row in result.rows]
    (command,) = (one for one in result.commands if "/swiglu-1" in one)
    assert run_command([*shlex.split(command)[1:], "run=alone"]) == 0, "the command of the page makes the same model"
    alone, ours = weights(Path("alone")), weights(folder / "s/swiglu-1")
    assert all(torch.equal(alone[name], ours[name]) for name in ours)
    values = [json.loads(line) for line in (folder / "s/gelu-0/metrics.jsonl").read_text().splitlines()]
    (model,) = (one for one in values if one["kind"] == "model")
    row = result.rows[0]
    assert model["parameters"] == row.parameters == sum(t.numel() for t in weights(folder / "s/gelu-0").values())
    assert row.flops == pytest.approx(model["flops_per_token"] * row.tokens)


def test_a_killed_study_goes_on_with_the_same_result(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = run_study(create(folder / "whole", plan()))

    class Killed(BaseException):
        pass

    real, count = study_runs.train, [0]

    def killed(recipe: Any, **named: Any) -> Any:
        count[0] += 1
        if count[0] == 3:  # during the third run, after its checkpoint
            named["watch"] = _KillAt(5, Killed)
        return real(recipe, **named)

    monkeypatch.setattr(study_runs, "train", killed)
    study = create(folder / "killed", plan(overrides=("train.save_every=2",)))
    with pytest.raises(Killed):
        run_study(study)
    assert not RunFolder(folder / "killed/gelu-1").has_model
    assert RunFolder(folder / "killed/gelu-1").checkpoints.steps()
    assert read_study(open_study(folder / "killed")).finished == 2
    result = run_study(open_study(folder / "killed"))
    assert [row.values for row in result.rows] == [row.values for row in whole.rows]


class _KillAt(study_runs.Watcher):
    def __init__(self, step: int, error: type[BaseException]) -> None:
        self.step, self.error = step, error

    def on_step(self, report: Any) -> None:
        if report.step >= self.step:
            raise self.error


@pytest.mark.parametrize("match", ["flops", "tokens", "parameters", "seconds"])
def test_variants_are_matched(match: Any, folder: Path) -> None:
    vary = {"model.feedforward": ("gelu", "swiglu"), "train.batch_tokens": ("128", "256")}
    if match == "parameters":
        vary = {"model.feedforward": ("gelu", "swiglu"), "model.ffn_width": ("100",)}
    study = create(folder / "s", plan(vary=vary, match=match, seeds=1, overrides=("train.steps=60",)))
    match_variants(study)
    rows = [(study.recipe((*one.overrides, *one.matched)), one) for one in study.variants.values()]
    budgets = {
        "flops": [r.train.steps * r.train.batch_tokens * (one.flops_per_token or 0) for r, one in rows],
        "tokens": [r.train.steps * r.train.batch_tokens for r, _ in rows],
        "parameters": [one.parameters for _, one in rows],
        "seconds": [r.train.steps for r, _ in rows],
    }[match]
    if match == "seconds":
        assert budgets[0] == 60
        assert all(1 <= steps <= 600 for steps in budgets)
        return
    assert budgets == pytest.approx([budgets[0]] * len(rows), rel=0.02 if match == "parameters" else 0.05)
    unmatched = [study.recipe(one.overrides) for _, one in rows]
    assert [r for r, _ in rows] != unmatched, "the negative control: without matching they differ"
    decided = [one.matched for one in study.variants.values()]
    again = open_study(folder / "s")
    match_variants(again)
    assert [one.matched for one in again.variants.values()] == decided, "decided once"


class Wide(nn.Module):
    """A feed-forward that does not state its cost."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(config.width, 99), nn.Linear(99, config.width)

    def forward(self, x: Tensor, tap: Any = None) -> Tensor:
        return self.down(self.up(x).relu())


def test_flops_that_a_part_does_not_state_are_counted(folder: Path) -> None:
    qkv.register_part("feedforward", "wide", build=Wide)
    try:
        study = create(folder / "s", plan(vary={"model.feedforward": ("gelu", "wide")}, match="flops"))
        match_variants(study)
    finally:
        PARTS["feedforward"].unregister("wide")
    plain, wide = study.variants.values()
    assert plain.flops_are_counted
    assert (plain.flops_per_token or 0) - (wide.flops_per_token or 0) == 3 * 2 * 2 * 16 * (64 - 99)
    config = _gpt()
    assert count_flops(config, 8) == summarise_model(config, 8).flops_training


def _gpt() -> qkv.Config:
    stack = qkv.StackConfig(vocab_size=50, width=16, layers=2, heads=2, ffn_width=24, max_positions=64)
    return qkv.Config(decoder=stack, head=qkv.HeadConfig(kind="lm", outputs=50, tied=True))


def test_each_variant_gets_its_best_learning_rate_on_a_seed_that_does_not_count(folder: Path) -> None:
    study = create(folder / "s", plan(tune={"train.lr": ("1e-8", "1e-2")}, seeds=1))
    result = run_study(study)
    assert [row.tuned for row in result.rows] == [("train.lr=1e-2",)] * 2
    tuned = {study.recipe(cell.overrides).train.seed for pairs in study.tuning_cells().values() for _, cell in pairs}
    counted = {study.recipe(cell.overrides).train.seed for cell in study.cells()}
    assert len(tuned) == 1
    assert not tuned & counted
    assert (folder / "s/gelu-tune-0/config.json").exists()


def test_a_run_that_fails_is_reported_and_not_compared(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = study_runs.train

    def diverging(recipe: Any, **named: Any) -> Any:
        trained = real(recipe, **named)
        if recipe.run.endswith("swiglu-1"):
            (Path(recipe.run) / "config.json").unlink()
            raise QkvError("the loss is not finite at step 3")
        return trained

    monkeypatch.setattr(study_runs, "train", diverging)
    result = run_study(create(folder / "s", plan()))
    assert result.notes == ("swiglu: a run failed: the loss is not finite at step 3",)
    assert result.comparisons[0].difference.seeds == 1
    assert (
        "One seed per variant: the difference holds for these runs, not for the change of the recipe"
        in result.comparisons[0].verdict
    )


def test_the_command_writes_a_page_with_the_exact_commands(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["study", "base.toml", "--vary", "model.feedforward=gelu,swiglu", "--seeds", "2", "--out", "s"]
    assert run_command(command) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "± " in out
    assert "swiglu is" in out
    page = (folder / "s/study.html").read_text()
    assert "qkv study base.toml --vary model.feedforward=gelu,swiglu --seeds 2" in page
    assert page.count("qkv train s/base.toml") == 4
    assert page.count("<svg") == 1
    assert json.loads((folder / "s/results.json").read_text())["finished"] == 4
    assert run_command(["study", "s", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["is_lower_better"]


def test_runs_side_by_side_are_processes_with_the_same_results(folder: Path) -> None:
    short = plan(seeds=1, overrides=("train.steps=2",))
    alone = run_study(create(folder / "alone", short))
    together = run_study(create(folder / "together", short), jobs=2)
    assert [row.values for row in together.rows] == [row.values for row in alone.rows]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"vary": {"model.feedforward": ("gelu", "swigl")}}, "did you mean 'swiglu'"),
        ({"vary": {"model.fedforward": ("gelu",)}}, "did you mean 'feedforward'"),
        ({"vary": {"model.feedforward": ("gelu", "gelu")}}, "two variants the name 'gelu'"),
        ({"tune": {"train.lr": ("x",)}}, "train.lr"),
        ({"match": "flops", "overrides": ("train.steps=0", "train.minutes=1")}, "must be in steps"),
        ({"metric": "bleu"}, "no metric 'bleu'"),
    ],
)
def test_what_is_refused(change: dict[str, Any], message: str, folder: Path) -> None:
    with pytest.raises(UsageError, match=message):
        run_study(create(folder / "s", plan(**{"seeds": 1, "overrides": ("train.steps=1",), **change})))


def test_another_study_in_the_folder_is_refused(folder: Path) -> None:
    create(folder / "s", plan())
    assert create(folder / "s", plan(seeds=5)).plan.seeds == 5
    with pytest.raises(UsageError, match="another study is there"):
        create(folder / "s", plan(match="flops"))


def test_choices_may_have_commas() -> None:
    assert split_choices(['a=[1, 2],"x,y",z'], "--vary") == {"a": ("[1, 2]", '"x,y"', "z")}
    with pytest.raises(UsageError, match="key=value,value"):
        split_choices(["a"], "--vary")


def test_an_unfinished_study_has_a_page_that_says_so(folder: Path) -> None:
    study = create(folder / "s", plan())
    study_runs.run_cells(study, study.cells()[:3], 1, None)
    result = read_study(study)
    assert (result.finished, result.runs) == (3, 4)
    assert "3 of 4 runs are finished; continue with: qkv study" in study_page(result, "")
    assert write_study_page(result).exists()


@pytest.mark.parametrize("jobs", [1, 3])
def test_what_is_missing_is_run_once_and_saved_each_time(jobs: int) -> None:
    saved: list[int] = []
    done = {2: 4}
    run_missing(range(6), done, lambda key: key * key, saved.append, jobs=jobs)
    assert done == {key: key * key for key in range(6)}
    assert sorted(saved) == [0, 1, 3, 4, 5]


@pytest.mark.parametrize("jobs", [1, 2])
def test_after_an_error_nothing_more_is_started(jobs: int) -> None:
    started: list[int] = []

    def run(key: int) -> int:
        started.append(key)
        if key == 1:
            raise QkvError("no")
        return key

    done: dict[int, int] = {}
    with pytest.raises(QkvError, match="no"):
        run_missing(range(20), done, run, lambda key: None, jobs=jobs)
    assert 0 in done
    assert len(started) < 20


def test_eval_compares_the_variants_of_a_study(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run_study(create(folder / "s", plan()))
    assert run_command(["eval", "s", "test.jsonl", "--json"]) == 0
    values = json.loads(capsys.readouterr().out)
    base, ours = (one for one in values["variants"] if one["metric"] == values["main"])
    assert [one["model"] for one in values["models"]] == ["s/gelu-0", "s/swiglu-0", "s/gelu-1", "s/swiglu-1"]
    assert base["difference"] is None
    scores = [one["metrics"][values["main"]] for one in values["models"]]
    assert ours["values"] == [scores[1], scores[3]]
    assert ours["difference"]["mean"] == pytest.approx((scores[1] - scores[0] + scores[3] - scores[2]) / 2)
    assert run_command(["eval", "s", "test.jsonl"]) == 0
    assert ours["verdict"].split(":")[0] in " ".join(capsys.readouterr().out.split())
    assert run_command(["eval", "s", "s/gelu-0"]) == 2
    assert "evaluate it alone" in capsys.readouterr().err


def test_eval_of_runs_says_what_one_seed_shows(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run_study(create(folder / "s", plan()))
    runs = ["s/gelu-0", "s/swiglu-0", "s/gelu-1"]
    assert run_command(["eval", *runs, "test.jsonl"]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "C − A" in out
    assert "so the intervals compare these models, not the recipes" in out
    assert run_command(["eval", *runs, "test.jsonl", "--json"]) == 0
    values = json.loads(capsys.readouterr().out)
    assert [one["model"] for one in values["comparisons"]] == runs[1:]
    first, _, third = (one["metrics"]["loss"] for one in values["models"])
    assert values["comparisons"][1]["differences"]["loss"]["value"] == pytest.approx(third - first)
