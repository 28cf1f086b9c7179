"""Each piece of advice is given for a run with that fault planted in it, and not for a healthy run."""

import json
import shlex
from pathlib import Path
from typing import Any

import pytest
from planted_runs import copy_run, make_rows, train_run, write_rows
from task_models import bert_tokenizer

import qkv
from qkv.cli import run_command
from qkv.errors import UsageError
from qkv.tasks.report import ReportOptions, RunReport, make_report
from qkv.tasks.report.advice import RULES
from qkv.tasks.report.rules_training import PRETRAINED
from qkv.tasks.train import open_recipe, train
from qkv.train.recipe import recipe_file

TRAINING, VALID = make_rows(800, seed=1), make_rows(160, seed=2)
OPTIONS = ReportOptions(max_records=400, seconds=20)
TWO_STEPS = """
[model]
width = 16
layers = 1
heads = 2
[train]
steps = 2
batch_tokens = 256
device = "cpu"
"""
LANGUAGE_RECIPE = f"""
[data]
max_length = 64
[tokenizer]
kind = "word"
[objective]
kind = "causal_lm"
{TWO_STEPS}"""
SUMMARISE_RECIPE = """
[data]
max_length = 32
max_source_length = 64
[tokenizer]
kind = "word"
[model]
width = 16
layers = 1
heads = 2
[train]
steps = 30
batch_tokens = 512
eval_every = 5
log_every = 1
device = "cpu"
"""


@pytest.fixture(scope="module")
def healthy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train_run(tmp_path_factory.mktemp("runs") / "healthy", TRAINING, VALID)


def examine(run: Path) -> tuple[RunReport, set[str]]:
    """The report, and the names of its advice, whose overrides must be valid for the recipe of the run."""
    report = make_report(run, OPTIONS)
    for advice in report.advice:
        recipe_file.read(run / "recipe.toml", advice.overrides)
        assert advice.reason.endswith(".")
        assert all(override in advice.command for override in advice.overrides)
    return report, {advice.name for advice in report.advice}


def test_a_healthy_run_gets_no_advice(healthy: Path) -> None:
    report, names = examine(healthy)
    assert not names
    assert report.curve_verdict.verdict == "settled"
    assert report.score.model.value > 0.95
    assert report.score.model.interval is not None
    assert {one.name for one in report.score.baselines} >= {"most frequent class", "nearest text (BM25)"}
    assert not report.leakage.leaks
    assert report.data.classes.keys() == {"good", "bad"}


@pytest.mark.parametrize(
    ("part", "leaked", "others", "counted", "overrides"),
    [
        ("valid", 30, VALID, "30 of 190 evaluation records (16 %)", ("data.valid=", "data.valid_fraction=0.1")),
        ("test", 25, make_rows(100, seed=7), "25 of 125 test records (20 %)", ()),
    ],
)
def test_leakage_is_found(
    healthy: Path, tmp_path: Path, part: str, leaked: int, others: Any, counted: str, overrides: tuple[str, ...]
) -> None:
    mixed = write_rows(tmp_path / "mixed.jsonl", [*TRAINING[:leaked], *others])
    report, names = examine(copy_run(healthy, tmp_path / "run", f"data.{part}={mixed}"))
    assert names == {"leakage" if part == "valid" else "test_leakage"}
    assert (report.leakage if part == "valid" else report.test_leakage).num_exact == leaked
    assert f"{counted} also occur in the training data" in report.advice[0].reason
    assert report.advice[0].overrides == overrides


def test_wrong_labels_are_found(healthy: Path, tmp_path: Path) -> None:
    pytest.importorskip("sklearn", reason="the second baseline on labels is scikit-learn's")
    noisy = write_rows(tmp_path / "noisy.jsonl", make_rows(160, seed=2, noise=0.15))
    report, names = examine(copy_run(healthy, tmp_path / "run", f"data.valid={noisy}"))
    assert "labels" in names
    assert report.errors is not None
    right = {row["text"]: row["label"] for row in VALID}
    assert all(right[one.text] == one.predicted != one.expected for one in report.errors.suspects)


def test_contradictory_labels_are_found(healthy: Path, tmp_path: Path) -> None:
    again = [{**row, "label": "bad" if row["label"] == "good" else "good"} for row in TRAINING[:20]]
    files = write_rows(tmp_path / "train.jsonl", [*TRAINING, *again])
    report, names = examine(copy_run(healthy, tmp_path / "run", f"data.train={files}"))
    assert names == {"labels"}
    assert len(report.leakage.conflicts) == 20


def test_truncation_is_found(healthy: Path, tmp_path: Path) -> None:
    report, names = examine(copy_run(healthy, tmp_path / "run", "data.max_length=10"))
    assert names == {"truncation"}
    assert report.advice[0].overrides == ("data.max_length=24",)  # 12 words and special tokens, rounded up
    assert "100 % of the training records are longer than 10 tokens" in report.advice[0].reason


def test_unusable_records_are_found(healthy: Path, tmp_path: Path) -> None:
    broken = write_rows(tmp_path / "broken.jsonl", [*TRAINING, *({"text": "no label"} for _ in range(30))])
    run = copy_run(healthy, tmp_path / "run", f"data.train={broken}", "data.max_invalid_fraction=0.2")
    report, names = examine(run)
    assert names == {"unusable"}
    assert report.advice[0].command == f"qkv data {broken}"


def test_few_records_are_found(healthy: Path, tmp_path: Path) -> None:
    hard = [{**row, "label": "good"} for row in VALID[:24]]  # half of them wrong, so that the interval is wide
    few = write_rows(tmp_path / "few.jsonl", hard)
    _, names = examine(copy_run(healthy, tmp_path / "run", f"data.valid={few}"))
    assert "few_records" in names


def test_overfitting_is_found(tmp_path: Path) -> None:
    run = train_run(tmp_path / "small", make_rows(40, seed=1), VALID, **{"train.steps": 40, "train.eval_every": 5})
    report, names = examine(run)
    assert "overfitting" in names
    assert report.curve_verdict.verdict == "overfitted"
    changes = next(one.overrides for one in report.advice if one.name == "overfitting")
    assert changes == ("train.final=best", "model.dropout=0.1", "train.patience=3")


def test_underfitting_is_found(tmp_path: Path) -> None:
    short = {"train.steps": 16, "train.eval_every": 2, "train.lr": 1e-3, "train.log_every": 1}
    _, names = examine(train_run(tmp_path / "short", TRAINING, VALID, **short))
    assert "underfitting" in names


def test_a_run_that_has_not_finished_is_resumed(healthy: Path, tmp_path: Path, run_qkv: Any) -> None:
    run = copy_run(healthy, tmp_path / "run", "train.steps=600")
    (run / "config.json").unlink()  # as if it had been stopped after its last checkpoint
    report, names = examine(run)
    assert names == {"unfinished"}
    assert report.advice[0].command == f"qkv train {run}"
    assert "its log ends at step 60, and its budget is train.steps=600." in report.advice[0].reason
    out = run_qkv(["report", str(run), "--limit", "30"]).out
    assert out.index("this run has not finished (resume it with") < out.index("What next")


def test_a_model_at_chance_on_all_data_trains_longer_and_judges_no_labels(healthy: Path, tmp_path: Path) -> None:
    """The labels are random, so that neither the model nor a baseline can be right."""
    files = [
        f"data.{name}={write_rows(tmp_path / f'{name}.jsonl', make_rows(300, seed=seed, noise=0.5))}"
        for seed, name in enumerate(("train", "valid"), 5)
    ]
    report, names = examine(copy_run(healthy, tmp_path / "run", *files))
    assert "underfitting" in names
    assert "labels" not in names
    assert next(one.reason for one in report.advice).startswith("Accuracy is ")


@pytest.mark.parametrize(("lr", "name", "better"), [(5.0, "lr_too_high", 0.5), (1e-6, "lr_too_low", 1e-5)])
def test_wrong_learning_rates_are_found(lr: float, name: str, better: float, tmp_path: Path) -> None:
    run = train_run(tmp_path / "run", TRAINING, VALID, **{"train.lr": lr, "train.steps": 12, "train.log_every": 1})
    report, names = examine(run)
    assert name in names
    assert "pretrained" not in names  # the learning rate explains the score
    (change,) = next(one.overrides for one in report.advice if one.name == name)
    suggested = float(change.removeprefix("train.lr="))
    assert suggested <= better if lr > 1 else suggested >= better


def test_missed_rare_classes_and_a_better_baseline_are_found(tmp_path: Path) -> None:
    training, valid = make_rows(800, seed=1, rare=0.03), make_rows(300, seed=2, rare=0.06)
    run = train_run(tmp_path / "rare", training, valid, **{"train.steps": 10, "train.eval_every": 2})
    report, names = examine(run)
    assert {"imbalance", "pretrained"} <= names
    advice = next(one for one in report.advice if one.name == "imbalance")
    assert "bad (" in advice.reason
    assert advice.overrides == ("train.metric=macro_f1", "train.final=best")
    qkv.new("bert-tiny", tokenizer=bert_tokenizer()).save(tmp_path / "bert")
    command = next(one.command for one in report.advice if one.name == "pretrained")
    init, and_then = command.replace(PRETRAINED, str(tmp_path / "bert")).split(" && ")
    assert run_command(shlex.split(init)[1:]) == 0
    assert run_command([*shlex.split(and_then)[1:], "--dry-run"]) == 0


def test_too_little_data_is_found(healthy: Path, tmp_path: Path) -> None:
    """Of 600 words of each class, the training data has too few, so that the curve of the SVM still rises."""
    pytest.importorskip("sklearn", reason="the learning curve is that of scikit-learn's SVM")
    training, valid = (
        write_rows(tmp_path / f"{seed}.jsonl", make_rows(400, seed=seed, vocabulary=600)) for seed in (3, 4)
    )
    report, names = examine(copy_run(healthy, tmp_path / "run", f"data.train={training}", f"data.valid={valid}"))
    assert "more_data" in names
    assert report.learning_curve.gain.measured[0] > 0
    assert [point.records for point in report.learning_curve.points] == [50, 100, 200, 400]


def test_every_rule_is_independent_of_what_was_not_examined(healthy: Path) -> None:
    report = make_report(healthy, ReportOptions(quick=True))
    assert not report.advice
    assert report.data is report.learning_curve is report.test_leakage is None
    assert report.score is not None
    assert [one.name for one in report.score.baselines] == ["most frequent class"]
    assert len(RULES) == 14


def test_the_recipe_itself_is_trained_on_fractions_if_there_is_time(healthy: Path) -> None:
    curve = make_report(healthy, ReportOptions(max_records=40, curve_minutes=0.01)).learning_curve
    assert curve.model == "this recipe, 0.0033 minutes on each fraction"
    assert [point.records for point in curve.points] == [200, 400, 800]
    assert curve.gain.expected[0] <= curve.gain.value <= curve.gain.expected[1]


def test_aligned_files_are_read(tmp_path: Path) -> None:
    """Two text files, line by line, whose targets are copies of the sources: the baseline is perfect."""
    lines = [f"{chr(97 + i % 26)}{i % 10}" for i in range(120)]
    for name in ("source", "target"):
        (tmp_path / f"{name}.txt").write_text("\n".join(lines), encoding="utf-8")
    recipe = tmp_path / "copy.toml"
    recipe.write_text(
        f"""run = "{tmp_path / "run"}"
[data]
train = {{source = "{tmp_path / "source.txt"}", target = "{tmp_path / "target.txt"}"}}
cache_dir = "{tmp_path / "cache"}"
max_length = 32
[tokenizer]
kind = "char"
{TWO_STEPS}""",
        encoding="utf-8",
    )
    train(open_recipe(recipe))
    report, names = examine(tmp_path / "run")
    assert "underfitting" in names  # after two steps
    assert report.score.metric == "exact_match"
    assert {one.name: one.value for one in report.score.baselines}["copy of the source"] == 1


def test_a_language_model_stands_beside_a_unigram_model(tmp_path: Path) -> None:
    """The last paragraph of the training data is repeated in the validation data."""
    lines = [" ".join(row["text"].split()[:10]) for row in make_rows(120, seed=1)]
    for name, text in (("train", lines[:100]), ("valid", [lines[99], *lines[100:]])):
        (tmp_path / f"{name}.txt").write_text("\n".join(text), encoding="utf-8")
    recipe = tmp_path / "language.toml"
    recipe.write_text(LANGUAGE_RECIPE, encoding="utf-8")
    files = [f"data.{name}={tmp_path / f'{name}.txt'}" for name in ("train", "valid")]
    train(open_recipe(recipe, [f"run={tmp_path / 'run'}", *files, f"data.cache_dir={tmp_path / 'cache'}"]))
    report, names = examine(tmp_path / "run")
    assert report.score.metric == "loss"
    (baseline,) = report.score.baselines
    assert baseline.name == "unigram model"
    assert report.score.model.value > baseline.value  # it is hardly trained, and a lower loss is better
    assert "baseline" in names
    assert [leak.text for leak in report.leakage.leaks.values()] == [lines[99]]
    assert (report.score.unit, report.data.unit, report.leakage.unit) == ("document", "document", "line")
    assert not make_report(tmp_path / "run", ReportOptions(quick=True)).leakage
    asked = make_report(tmp_path / "run", ReportOptions(max_records=5, curve_minutes=0.01))
    assert asked.learning_curve is None
    reason = "there is no learning curve: it needs at least 160 training excerpts, and there are 4; add training data"
    assert reason in asked.notes


def test_the_learning_curve_of_a_language_model_is_its_loss(tmp_path: Path) -> None:
    text = "\n".join(row["text"] for row in make_rows(6000, seed=1))
    (tmp_path / "notes.txt").write_text(text, encoding="utf-8")
    (tmp_path / "language.toml").write_text(LANGUAGE_RECIPE, encoding="utf-8")
    changes = [
        f"run={tmp_path / 'run'}",
        f"data.train={tmp_path / 'notes.txt'}",
        f"data.cache_dir={tmp_path / 'cache'}",
    ]
    train(open_recipe(tmp_path / "language.toml", changes))
    curve = make_report(tmp_path / "run", ReportOptions(max_records=5, curve_minutes=0.01)).learning_curve
    assert (curve.metric, curve.unit) == ("loss", "excerpt")
    assert [round(point.records / curve.points[-1].records, 2) for point in curve.points] == [0.25, 0.5, 1.0]
    assert all(0 < point.score < 10 for point in curve.points)


def test_held_out_lines_have_their_line_numbers_and_the_loss_is_that_of_the_run(tmp_path: Path) -> None:
    """The end of a text file is held out. Its lines 103 and 118 are copies of lines 2 and 5; every seventh is blank."""
    lines = [row["text"] if i % 7 else "" for i, row in enumerate(make_rows(120, seed=1))]
    lines[102], lines[117] = lines[1], lines[4]
    file = tmp_path / "notes.txt"
    file.write_text("\n".join(lines), encoding="utf-8")
    recipe = tmp_path / "language.toml"
    recipe.write_text(LANGUAGE_RECIPE, encoding="utf-8")
    changes = [f"run={tmp_path / 'run'}", f"data.train={file}", f"data.cache_dir={tmp_path / 'cache'}"]
    train(open_recipe(recipe, [*changes, "data.valid_fraction=0.4"]))
    report, _ = examine(tmp_path / "run")
    assert report.leakage is not None
    places = [(leak.evaluation, leak.training) for leak in report.leakage.leaks.values()]
    assert places == [(f"{file}:103", f"{file}:2"), (f"{file}:118", f"{file}:5")]
    assert report.score.model.value == pytest.approx(report.curves.validation["loss"][-1][1], rel=1e-5)
    assert not report.notes
    sampled = make_report(tmp_path / "run", ReportOptions(max_records=1))
    assert (sampled.score.unit, sampled.score.num_records, sampled.score.num_usable) == ("excerpt", 1, 2)
    assert "excerpts of 2,000 characters" in sampled.notes[-1]


def test_texts_from_a_template_are_no_leaks_and_a_useless_summariser_trains_longer(tmp_path: Path) -> None:
    rows = [
        {
            "source": f"The meeting about number {i} is on Monday. Bring the plan for number {i}.",
            "target": f"meeting {i}",
        }
        for i in range(120)
    ]
    training, valid = (write_rows(tmp_path / f"{part}.jsonl", rows[i::4]) for i, part in enumerate(("train", "valid")))
    recipe = tmp_path / "summarise.toml"
    recipe.write_text(SUMMARISE_RECIPE, encoding="utf-8")
    files = [f"data.train={training}", f"data.valid={valid}", f"data.cache_dir={tmp_path / 'cache'}"]
    train(open_recipe(recipe, [f"run={tmp_path / 'run'}", *files]))
    report, names = examine(tmp_path / "run")
    assert not report.leakage.leaks
    assert report.score.model.value == 0
    assert names == {"underfitting", "few_records"}  # 30 records, none right: up to 11 % may be
    pytest.importorskip("rouge_score", reason='computes ROUGE; pip install "qkv[rouge]"')
    train(open_recipe(recipe, [f"run={tmp_path / 'rouge'}", *files, "train.steps=4", "train.metric=rougeL"]))
    report = make_report(tmp_path / "rouge", ReportOptions(curve_minutes=0.001))
    assert report.score.metric == "rougeL"
    assert "first sentence of the source" in {one.name for one in report.score.baselines}
    (note,) = (note for note in report.notes if "there is no learning curve" in note)
    assert "needs at least 160 training records, and there are 30" in note


def test_a_model_without_a_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="not the folder of a run"):
        make_report(tmp_path)


def test_a_folder_that_is_not_there_gets_the_nearest_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("nope", "runs/nope"):
        with pytest.raises(UsageError, match=f"^{name}: no such folder; check the path$"):
            make_report(name)
    (tmp_path / "runs" / "dates").mkdir(parents=True)
    for name in ("runs/datse", "dates"):
        with pytest.raises(UsageError, match=f"^{name}: no such folder; .* did you mean runs/dates"):
            make_report(name)
    with pytest.raises(UsageError, match=r"not the folder of a run.*qkv eval en-fr DATA"):
        make_report("en-fr")  # a bundled model


def test_unknown_options_of_the_function_are_named() -> None:
    with pytest.raises(UsageError, match="has no option 'limit'; --limit of the command is max_records= here; known: "):
        qkv.report("runs/x", limit=50)
    with pytest.raises(UsageError, match="has no option 'records'; known: max_records, seconds, curve_minutes, device"):
        qkv.report("runs/x", records=50)


def test_the_command_writes_a_page_and_json(healthy: Path, run_qkv: Any) -> None:
    out = run_qkv(["report", str(healthy), "--limit", "50"]).out
    assert "Nothing stands out" in out
    assert "most frequent class" in out
    assert (healthy / "report.html").read_text(encoding="utf-8").startswith("<!doctype html>")
    values = json.loads(run_qkv(["report", str(healthy), "--limit", "50", "--json"]).out)
    assert values["score"]["num_records"] == 50
    assert values["score"]["model"]["interval"][0] <= values["score"]["model"]["value"]
    assert {"advice", "curve_verdict", "curves", "errors", "leakage", "data", "learning_curve"} <= values.keys()
    assert run_command(["report", str(healthy), "--seconds", "0"]) == 2
    assert run_command(["report", str(healthy), "--out", "page.txt"]) == 2
