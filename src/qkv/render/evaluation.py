"""The output of `qkv eval`: a table of the metrics, scores by class, and examples with the model's predictions."""

from collections.abc import Mapping, Sequence
from itertools import islice
from string import ascii_uppercase

from rich.console import Console
from rich.text import Text

from qkv.errors import count_nouns
from qkv.render.console import escape_controls
from qkv.render.formatting import plain_table
from qkv.tasks.baselines import BASELINE_NAME
from qkv.tasks.evaluation import Evaluation
from qkv.tasks.metrics import ClassReport, Difference, Interval
from qkv.tasks.metrics.notation import format_score
from qkv.tasks.results import cut_text

MAX_TEXT_CHARS = 300
LETTERS = (*ascii_uppercase, *(f"A{letter}" for letter in ascii_uppercase))
MAX_CLASSES = 12
MAX_CLASS_CHARS = 30
INTERVAL_HEADING = "95 % interval"


def print_evaluation(
    model: str,
    result: Evaluation,
    console: Console,
    baseline: Mapping[str, float] | None = None,
    advice_below_baseline: str = "",
) -> None:
    """Print the metrics (with a baseline's metrics beside them, if there is one), the scores by class, and the
    examples.

    The advice is printed if the baseline is better; without advice, nothing is said, because the comparison is unfair.
    """
    console.print(Text.assemble((escape_controls(model), "bold"), f"   {count_nouns(result.num_records, 'record')}"))
    headings = [INTERVAL_HEADING] if result.intervals else []
    table = plain_table("", "model", *headings, BASELINE_NAME) if baseline else plain_table("", " ", *headings)
    for name, value in result.metrics.items():
        style = "bold" if name == result.main_metric else ""
        interval = [Text(format_interval(name, result.intervals.get(name)), "dim")] if headings else []
        beside = [Text(format_metric(name, baseline[name]), "dim")] if baseline else []
        table.add_row(name.replace("_", " "), format_metric(name, value), *interval, *beside, style=style)
    console.print(table)
    for name, signature in result.signatures.items():
        console.print(Text(f"{name.replace('_', ' ')}: {signature}", "dim"), soft_wrap=True)
    if baseline and advice_below_baseline and baseline[result.main_metric] > result.metrics[result.main_metric]:
        console.print(
            Text(
                f"The baseline, {BASELINE_NAME} on the same training data, is better than this model. "
                f"{advice_below_baseline}",
                "yellow",
            )
        )
    for note in result.notes:
        console.print(Text(escape_controls(note, keep="\n"), "yellow"))
    if result.report is not None:
        print_report(result.report, console)
    for sample in result.samples:
        console.print()
        is_correct = sample.prediction.strip() == sample.expected.strip()
        colour = ("green" if is_correct else "red") if sample.expected else ""  # some tasks expect no particular text
        for name, text, style in (
            ("source", sample.source, ""),
            ("predicted", sample.prediction, colour),
            *([("expected", sample.expected, "")] if sample.expected else []),
        ):
            console.print(
                Text.assemble((f"{name:<10}", "dim"), (cut_text(escape_controls(text), MAX_TEXT_CHARS), style))
            )


def print_report(report: ClassReport, console: Console) -> None:
    """Print precision, recall and F1 of the classes with the lowest F1, and the most frequent mistakes."""
    worst = sorted(report.classes.items(), key=lambda item: (item[1].f1, item[0]))
    console.print()
    heading = "class" if len(worst) <= MAX_CLASSES else f"{MAX_CLASSES} of {len(worst):,} classes"
    table = plain_table(heading, "precision", "recall", "F1", "expected", "predicted")
    for name, scores in worst[:MAX_CLASSES]:
        values = (format_metric("f1", value) for value in (scores.precision, scores.recall, scores.f1))
        table.add_row(_class_name(name), *values, f"{scores.expected:,}", f"{scores.predicted:,}")
    console.print(table)
    mistakes = report.most_confused()
    if mistakes:
        console.print()
        table = plain_table("most confused: expected", "predicted", "times")
        table.columns[1].justify = "left"
        for expected, predicted, times in mistakes:
            table.add_row(_class_name(expected), _class_name(predicted), f"{times:,}")
        console.print(table)


def print_comparison(
    models: Sequence[str],
    results: Sequence[Evaluation],
    differences: Sequence[Mapping[str, Difference]],
    console: Console,
    note: str = "",
) -> None:
    """Print the scores of several models with their intervals, and the differences of the others from the first."""
    letters = list(islice(LETTERS, len(models)))
    for letter, model, result in zip(letters, models, results, strict=True):
        console.print(
            Text.assemble(
                (f"{letter}  ", "dim"),
                (escape_controls(model), "bold"),
                f"   {count_nouns(result.num_records, 'record')}",
            )
        )
    table = plain_table("", "", " ", INTERVAL_HEADING, "p-value")
    for name in results[0].metrics:
        if any(name not in result.metrics for result in results):
            continue
        style = "bold" if name == results[0].main_metric else ""
        for letter, result in zip(letters, results, strict=True):
            interval = Text(format_interval(name, result.intervals.get(name)), "dim")
            heading = name.replace("_", " ") if letter == "A" else ""
            table.add_row(heading, letter, format_metric(name, result.metrics[name]), interval, style=style)
        for letter, found in zip(letters[1:], differences, strict=True):
            if (difference := found.get(name)) is None:
                continue
            low, high = (format_difference(name, end) for end in difference.interval)
            value = Text(format_difference(name, difference.value))
            ends, p_value = Text(f"{low} … {high}", "dim"), f"{difference.p_value:.3f}"
            table.add_row("", f"{letter} − A", value, ends, p_value, style=style)
    console.print(table)
    if note:
        console.print(note, soft_wrap=True)
    for letter, result in zip(letters, results, strict=True):
        for text in result.notes:
            console.print(Text(f"{letter}: {escape_controls(text, keep=chr(10))}", "yellow"))


def format_metric(name: str, value: float) -> str:
    """A metric in its usual notation.

    >>> format_metric("accuracy", 0.9512), format_metric("bleu", 41.018)
    ('95.1 %', '41.02')
    """
    return format_score(name, value, extra_digits=1)


def format_interval(name: str, interval: Interval | None) -> str:
    """A confidence interval in the notation of its metric; "" if there is none.

    >>> format_interval("accuracy", (0.9421, 0.9603)), format_interval("bleu", (40.1, 42.0))
    ('94.2 … 96.0 %', '40.10 … 42.00')
    """
    if interval is None:
        return ""
    low, high = (format_metric(name, end) for end in interval)
    return f"{low.removesuffix(' %')} … {high}"


def format_difference(name: str, value: float) -> str:
    """A difference of two metrics with its sign, in points if the metric is printed as a percentage.

    >>> format_difference("accuracy", 0.0102), format_difference("bleu", -0.5)
    ('+1.0', '−0.50')
    """
    sign = "−" if value < 0 else "+"
    return sign + format_metric(name, abs(value)).removesuffix(" %")


def _class_name(name: str) -> str:
    return cut_text(escape_controls(name), MAX_CLASS_CHARS)
