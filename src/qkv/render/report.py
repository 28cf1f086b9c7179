"""The output of `qkv report`: what to do next, the score, the errors and the data, on one page of a terminal."""

import math
import shlex
from collections.abc import Sequence

from rich.console import Console
from rich.padding import Padding
from rich.text import Text

from qkv.errors import count_nouns
from qkv.render.console import escape_controls
from qkv.render.formatting import plain_table
from qkv.tasks.metrics.labels import most_confused
from qkv.tasks.metrics.notation import format_score, name_metric
from qkv.tasks.report import RunReport
from qkv.tasks.report.diagnostics import capitalise
from qkv.tasks.report.leakage import LeakageReport
from qkv.tasks.report.rules_data import describe_gain
from qkv.tasks.report.score import Measured, ScoredRecord, ScoreReport
from qkv.tasks.results import cut_text

MAX_TEXT_CHARS = 140
MAX_ERRORS, MAX_CLASSES, MAX_CONFUSIONS, MAX_LEAKS = 5, 8, 5, 3
BAR_WIDTH = 24


def print_report(report: RunReport, console: Console) -> None:
    """Print the whole report."""
    console.print(Text.assemble((escape_controls(report.folder), "bold"), f"   {escape_controls(report.data_name)}"))
    print_notes(report.model_notes, console)
    print_advice(report, console)
    if report.score is not None:
        print_score(report.score, console)
    _heading("Training", console)
    console.print(Text(f"{capitalise(report.curve_verdict.summary)}."))
    if report.score is not None:
        print_groups(report.score, console)
    if report.errors is not None:
        errors = report.errors
        if errors.has_suspect_labels:
            print_errors(
                "Suspect labels: the model is confident, and the baseline agrees with it", errors.suspects, console
            )
        else:
            print_errors(
                "Errors with the highest confidence: read these first; the label may be wrong",
                errors.most_confident,
                console,
            )
        print_errors("Worst errors", errors.worst, console)
    print_data(report, console)
    if report.learning_curve is not None:
        curve = report.learning_curve
        _heading(f"Learning curve of {curve.model}", console)
        points = [
            f"{point.records:,} {curve.unit}s: {format_score(curve.metric, point.score)}" for point in curve.points
        ]
        console.print(Text(", ".join(points)))
        console.print(Text(f"Twice the data: about {describe_gain(curve)}"))
    elif report.errors is not None:
        _heading("Learning curve", console)
        console.print(
            Text("Not computed. To train the recipe on a quarter, half and all of the data, for 15 minutes in all:")
        )
        console.print(
            Text(f"   qkv report {escape_controls(report.folder)} --curve-minutes 15", "cyan"), soft_wrap=True
        )
    print_notes(report.notes, console)


def print_notes(notes: Sequence[str], console: Console) -> None:
    """Print notes, one a line."""
    for note in notes:
        console.print(Text(escape_controls(note, keep="\n"), "yellow"))


def print_advice(report: RunReport, console: Console) -> None:
    """Print the advice."""
    _heading("What next", console)
    if not report.advice:
        console.print(Text("Nothing stands out: no change to the recipe is clearly better."))
    if sum(advice.starts_run for advice in report.main_advice) > 1:
        console.print(
            Text("The commands are alternatives: each trains a new run, without the changes of the others.", "dim")
        )
    for number, advice in enumerate(report.main_advice, 1):
        console.print(Text.assemble((f"{number}. ", "bold"), (advice.title, "bold")))
        console.print(Padding(Text(escape_controls(advice.reason)), (0, 0, 0, 3)))
        if advice.command:
            console.print(Text(f"   {escape_controls(advice.command)}", "cyan"), soft_wrap=True)  # to be copied
    if rest := report.advice[len(report.main_advice) :]:
        console.print(Text("Also: " + "; ".join(advice.title for advice in rest), "dim"))


def print_score(score: ScoreReport, console: Console) -> None:
    """Print the scores of the model and of the baselines."""
    _heading(f"{capitalise(name_metric(score.metric))} on {count_records(score)}", console)
    best = score.best_baseline
    table = plain_table("", "", "", "")
    table.columns[1].justify = "right"
    rows = [*([("training data", score.training)] if score.training else []), ("this model", score.model)]
    rows += [(result.name, result) for result in reversed(score.baselines)]
    longest = max([result.value for _, result in rows if math.isfinite(result.value)], default=1.0)
    for name, result in rows:
        bar = (
            "█" * round(BAR_WIDTH * max(0.0, result.value) / longest)
            if longest > 0 and result.value == result.value
            else ""
        )
        style = "bold" if result is score.model else "dim"
        cells = (name, format_score(score.metric, result.value), format_interval(score.metric, result), bar)
        table.add_row(*cells, style=style)
    console.print(table)
    if best is not None and (verdict := compare_with_baseline(score, best)) != "better than":
        console.print(Text(f"The model is {verdict} the baseline ({best.name}).", "yellow"))


def count_records(score: ScoreReport) -> str:
    """The number of records that were evaluated, and of how many, if they are a sample.

    >>> count_records(ScoreReport("accuracy", Measured("model", 0.9), num_records=32, num_usable=715))
    '32 of 715 records'
    """
    is_sample = score.num_records < score.num_usable
    return f"{score.num_records:,} of " * is_sample + count_nouns(max(score.num_records, score.num_usable), score.unit)


def compare_with_baseline(score: ScoreReport, best: Measured) -> str:
    """Whether the model's interval lies above the baseline, below it, or around it."""
    ends = score.model.interval or (score.model.value, score.model.value)
    low, high = (-ends[1], -ends[0]) if score.metric == "loss" else ends
    value = -best.value if score.metric == "loss" else best.value
    return "better than" if low > value else "worse than" if high < value else "not clearly different from"


def format_interval(metric: str, measured: Measured) -> str:
    """The 95 % confidence interval, or nothing."""
    return "" if measured.interval is None else " … ".join(format_score(metric, end) for end in measured.interval)


def print_groups(score: ScoreReport, console: Console) -> None:
    """Print the score by class and by length, and which classes are confused."""
    if score.classes:
        _heading("By class, the worst first", console)
        table = plain_table("", "F1", "precision", "recall", "records")
        present = [(name, scores) for name, scores in score.classes.items() if scores["expected"]]
        ordered = sorted(present, key=lambda item: (item[1]["f1"], item[0]))
        for name, scores in ordered[:MAX_CLASSES]:
            percent = [f"{100 * scores[key]:.0f} %" for key in ("f1", "precision", "recall")]
            table.add_row(cut_text(escape_controls(name), 30), *percent, f"{scores['expected']:,}")
        console.print(table)
        if len(ordered) > MAX_CLASSES:
            console.print(Text(f"… and {len(ordered) - MAX_CLASSES:,} more classes", "dim"))
    if confused := most_confused(score.confusion, MAX_CONFUSIONS):
        listed = [f"{expected} → {predicted} ({times:,}×)" for expected, predicted, times in confused]
        console.print(Text(escape_controls("Expected → predicted: " + ", ".join(listed))))
    if score.lengths:
        groups = [f"up to {group.longest} words: {100 * group.score:.0f} %" for group in score.lengths]
        console.print(Text("Mean score of a record by length: " + ", ".join(groups)))


def print_errors(title: str, errors: Sequence[ScoredRecord], console: Console) -> None:
    """Print some errors."""
    if not errors:
        return
    _heading(title, console)
    for error in errors[:MAX_ERRORS]:
        sure = "" if error.confidence is None else f", {100 * error.confidence:.0f} % sure"
        location = escape_controls(error.location)
        console.print(Text.assemble((f"{location}  ", "dim"), cut_text(escape_controls(error.text), MAX_TEXT_CHARS)))
        predicted, expected = (
            cut_text(escape_controls(text), MAX_TEXT_CHARS) for text in (error.predicted, error.expected)
        )
        words = Text.assemble(("   predicted ", "dim"), (predicted, "red"), (f"{sure}; expected ", "dim"), expected)
        console.print(words)


def print_data(report: RunReport, console: Console) -> None:
    """Print what training left out, and what occurs in both training and evaluation."""
    _heading("Data", console)
    data = report.data
    if data is not None:
        counts = {"truncated": data.truncated, "too long": data.skipped, "empty": data.empty, "invalid": data.invalid}
        lost = ", ".join(f"{count:,} {name}" for name, count in counts.items() if count) or "none truncated or unusable"
        console.print(Text(f"{count_nouns(data.records, f'training {data.unit}')} of {data.tokens:,} tokens: {lost}"))
    if report.score is not None and report.score.num_unusable:
        lack = "lacks" if report.score.num_unusable == 1 else "lack"
        unusable = count_nouns(report.score.num_unusable, "evaluation record")
        console.print(Text(f"{unusable} {lack} a field of the task"))
    for name, found in (("evaluation", report.leakage), ("test", report.test_leakage)):
        if found is not None:
            print_leakage(name, found, console)


def print_leakage(name: str, found: LeakageReport, console: Console) -> None:
    """Print which records occur in the training data too."""
    near, compared = len(found.leaks) - found.num_exact, count_nouns(found.num_training, f"training {found.unit}")
    total = count_nouns(found.num_evaluation, f"{name} {found.unit}")
    if found.leaks:
        console.print(
            Text(
                f"{len(found.leaks):,} of {total} also occur{'s' if len(found.leaks) == 1 else ''} among {compared}: "
                f"{found.num_exact:,} word for word, {near:,} nearly"
            )
        )
    else:
        console.print(Text(f"none of {total} occurs among {compared}, neither word for word nor nearly"))
    for leak in sorted(found.leaks.values(), key=lambda leak: -leak.similarity)[:MAX_LEAKS]:
        is_equal = leak.similarity == 1
        place = escape_controls(f"{leak.evaluation} {'=' if is_equal else '≈'} {leak.training}  ")
        text, other = (cut_text(escape_controls(text), MAX_TEXT_CHARS) for text in (leak.text, leak.training_text))
        console.print(Padding(Text.assemble((place, "dim"), text), (0, 0, 0, 3)))
        if not is_equal:
            console.print(Padding(Text.assemble(("≈ ", "dim"), other), (0, 0, 0, 6)))
    if found.conflicts:
        text, first, second = found.conflicts[0]
        shown = cut_text(escape_controls(f"{first} and {second}: {text}"), MAX_TEXT_CHARS)
        verb = "has" if len(found.conflicts) == 1 else "have"
        counted = count_nouns(len(found.conflicts), "training text")
        console.print(Text(f"{counted} {verb} different labels, such as {shown}"))


def name_better_baseline(report: RunReport) -> str:
    """A sentence if a baseline has a better score than the model, otherwise ""."""
    score = report.score
    if score is None or score.best_baseline is None or not score.is_below_baseline:
        return ""
    best, own = (format_score(score.metric, one.value) for one in (score.best_baseline, score.model))
    name = score.best_baseline.name
    return f"The model is worse than a baseline ({name_metric(score.metric)} {own}; {name}: {best})."


def summarise_report(report: RunReport) -> list[str]:
    """Two lines at the end of `qkv train`: the score with a baseline, and the most important advice."""
    lines = []
    score = report.score
    if score is not None:
        interval = format_interval(score.metric, score.model)
        beside = (
            ""
            if score.best_baseline is None
            else (f"; {score.best_baseline.name}: {format_score(score.metric, score.best_baseline.value)}")
        )
        shown = f"{name_metric(score.metric)} {format_score(score.metric, score.model.value)}"
        lines.append(f"{shown}{f' ({interval})' if interval else ''} on {count_records(score)}{beside}")
    if report.advice:
        first = report.advice[0]
        is_listed = first.command.startswith("qkv report ")  # a quick report lists nothing
        see = f" See them with: qkv report {shlex.quote(report.folder)}" if is_listed else ""
        lines.append(f"{first.title}. {first.reason}{see}")
    return lines


def _heading(title: str, console: Console) -> None:
    console.print()
    console.print(Text(title, "bold underline"))
