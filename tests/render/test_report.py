"""The words of a report on a terminal: numbers and nouns agree, and near-duplicates are not shown as equal."""

from dataclasses import replace
from io import StringIO

import pytest
from rich.console import Console

from qkv.render.report import name_better_baseline, print_report, summarise_report
from qkv.tasks.report import Advice, RunReport
from qkv.tasks.report.curve_verdict import CurveVerdict
from qkv.tasks.report.data import RecordCounts
from qkv.tasks.report.leakage import Leak, LeakageReport
from qkv.tasks.report.score import LengthGroup, Measured, ScoreReport
from qkv.train.run.curves import RunCurves

SCORE = ScoreReport(
    "bleu", Measured("model", 67.1), num_records=40, num_usable=40, lengths=(LengthGroup(1, 5, 40, 0.8),)
)
REPORT = RunReport(
    folder="runs/my run",
    task="text_to_text",
    data_name="validation data",
    advice=(),
    score=SCORE,
    curve_verdict=CurveVerdict("settled", "it fell"),
    curves=RunCurves("a"),
)


def show(report: RunReport) -> str:
    console = Console(file=StringIO(), width=200)
    print_report(report, console)
    assert isinstance(console.file, StringIO)
    return console.file.getvalue()


def test_lengths_have_the_mean_score_of_a_record() -> None:
    assert "Mean score of a record by length: up to 5 words: 80 %" in show(REPORT)


def test_near_duplicates_are_shown_with_both_texts() -> None:
    leaks = {0: Leak("v:5", "t:1", "the red car", "the blue car", 0.95), 1: Leak("v:6", "t:2", "equal", "Equal!", 1.0)}
    out = show(replace(REPORT, leakage=LeakageReport(10, 20, True, leaks)))
    assert "2 of 10 evaluation records also occur among 20 training records: 1 word for word, 1 nearly" in out
    assert "v:5 ≈ t:1  the red car" in out
    assert "≈ the blue car" in out
    assert "v:6 = t:2  equal" in out
    assert "Equal!" not in out


@pytest.mark.parametrize(("count", "noun"), [(1, "document"), (2, "documents")])
def test_nouns_agree_with_their_numbers(count: int, noun: str) -> None:
    score = ScoreReport("loss", Measured("model", 1.0), num_records=count, num_usable=count, unit="document")
    found = LeakageReport(1, 1, True, {0: Leak("v:5", "t:1", "a", "a", 1.0)}, unit="line")
    report = replace(
        REPORT, score=score, data=RecordCounts(count, 900, 0, 0, 0, 0, 64, 64, unit="document"), leakage=found
    )
    out = show(report)
    assert f"Loss on {count} {noun}\n" in out
    assert f"{count} training {noun} of 900 tokens" in out
    assert "1 of 1 evaluation line also occurs among 1 training line: 1 word for word" in out


@pytest.mark.parametrize(
    ("metric", "value", "baseline", "expected"),
    [
        ("f1", 0.435, 0.443, "The model is worse than a baseline (F1 43.5 %; most frequent tag: 44.3 %)."),
        ("f1", 0.45, 0.443, ""),
        ("loss", 2.0, 3.0, ""),
        ("loss", 3.0, 2.0, "The model is worse than a baseline (loss 3.000; most frequent tag: 2.000)."),
    ],
)
def test_a_better_baseline_is_named(metric: str, value: float, baseline: float, expected: str) -> None:
    baselines = (Measured("most frequent tag", baseline),)
    score = ScoreReport(metric, Measured("model", value), baselines, num_records=40, num_usable=40)
    assert name_better_baseline(replace(REPORT, score=score)) == expected
    assert name_better_baseline(REPORT) == name_better_baseline(replace(REPORT, score=None)) == ""


def test_several_commands_are_alternatives() -> None:
    longer, wider = (
        Advice(name, name, "It is.", (), f"qkv train a run=a-{number}")
        for number, name in enumerate(("longer", "wider"))
    )
    assert "The commands are alternatives" in show(replace(REPORT, advice=(longer, wider)))
    assert "The commands are alternatives" not in show(replace(REPORT, advice=(longer,)))


def test_the_summary_of_a_training_names_the_command_that_lists_the_records() -> None:
    """It lists nothing itself."""
    removal = Advice("leakage", "Remove the leaked records", "3 of 9 are.", command="qkv report 'runs/my run' --json")
    line = summarise_report(replace(REPORT, advice=(removal,)))[-1]
    assert line == "Remove the leaked records. 3 of 9 are. See them with: qkv report 'runs/my run'"
    longer = Advice("underfitting", "Train longer", "It fell.", command="qkv train a run=b")
    assert summarise_report(replace(REPORT, advice=(longer,)))[-1] == "Train longer. It fell."
