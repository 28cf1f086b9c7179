"""What `qkv eval` shows: the metrics as a table, and some examples with what the model made of them."""

from rich.console import Console
from rich.table import Table
from rich.text import Text

from qkv.render.survey import escape_controls
from qkv.tasks.task import Evaluation

SCORES_TO_100 = ("bleu", "bleu_lowercase", "tokenised_bleu", "sacrebleu", "chrf")  # 0 … 100, as people quote them
UNSCALED = ("loss", "perplexity", "bits_per_character", "bits_per_byte")  # numbers of their own kind
CORRELATIONS = ("matthews", "pearson", "spearman", "mean_reciprocal_rank")  # −1 … 1
MAX_TEXT_CHARS = 300  # characters of a text


def print_evaluation(model: str, found: Evaluation, console: Console) -> None:
    """The table of `qkv eval`, and what lies behind it."""
    console.print(Text.assemble((escape_controls(model), "bold"), f"   {found.num_records:,} records"))
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="dim", show_header=False)
    table.add_column("")
    table.add_column("", justify="right")
    for name, value in found.metrics.items():
        table.add_row(name.replace("_", " "), format_metric(name, value), style="bold" if name == found.main else "")
    console.print(table)
    for note in found.notes:
        console.print(Text(escape_controls(note, keep="\n"), "yellow"))
    for sample in found.samples:
        console.print()
        right = sample.prediction.strip() == sample.expected.strip()
        mark = ("green" if right else "red") if sample.expected else ""  # there may be no one right answer
        for name, text, style in (
            ("source", sample.source, ""),
            ("written", sample.prediction, mark),
            *([("expected", sample.expected, "")] if sample.expected else []),
        ):
            console.print(Text.assemble((f"{name:<9}", "dim"), (truncate(text), style)))


def format_metric(name: str, value: float) -> str:
    """A metric as people write it.

    >>> format_metric("accuracy", 0.9512), format_metric("bleu", 41.018), format_metric("loss", 1.46971), format_metric("spearman", 0.82034)
    ('95.1 %', '41.02', '1.4697', '0.8203')
    """
    if name in SCORES_TO_100:
        return f"{value:.2f}"
    if name in UNSCALED or name in CORRELATIONS:
        return f"{value:.4f}"
    return f"{100 * value:.1f} %"


def truncate(text: str) -> str:
    """Text that does nothing to a terminal, and not too much of it."""
    shown = escape_controls(text)
    return shown if len(shown) <= MAX_TEXT_CHARS else shown[: MAX_TEXT_CHARS - 1] + "…"
