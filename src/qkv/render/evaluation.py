"""What `qkv eval` shows: the metrics as a table, and some examples with what the model made of them."""

from rich.console import Console
from rich.table import Table
from rich.text import Text

from qkv.render.survey import visible
from qkv.tasks.task import Evaluation

POINTS = ("bleu", "bleu_lowercase", "tokenised_bleu", "sacrebleu", "chrf")  # 0 … 100, as people quote them
PLAIN = ("loss", "perplexity", "bits_per_character", "bits_per_byte")  # numbers of their own kind
CORRELATIONS = ("matthews", "pearson", "spearman", "mean_reciprocal_rank")  # −1 … 1
SHOWN = 300  # characters of a text


def render(model: str, found: Evaluation, console: Console) -> None:
    """The table of `qkv eval`, and what lies behind it."""
    console.print(Text.assemble((visible(model), "bold"), f"   {found.records:,} records"))
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="dim", show_header=False)
    table.add_column("")
    table.add_column("", justify="right")
    for name, value in found.metrics.items():
        table.add_row(name.replace("_", " "), number(name, value), style="bold" if name == found.main else "")
    console.print(table)
    for note in found.notes:
        console.print(Text(visible(note, keep="\n"), "yellow"))
    for sample in found.samples:
        console.print()
        right = sample.written.strip() == sample.expected.strip()
        mark = ("green" if right else "red") if sample.expected else ""  # there may be no one right answer
        for name, text, style in (
            ("source", sample.source, ""),
            ("written", sample.written, mark),
            *([("expected", sample.expected, "")] if sample.expected else []),
        ):
            console.print(Text.assemble((f"{name:<9}", "dim"), (shortened(text), style)))


def number(name: str, value: float) -> str:
    """A metric as people write it.

    >>> number("accuracy", 0.9512), number("bleu", 41.018), number("loss", 1.46971), number("spearman", 0.82034)
    ('95.1 %', '41.02', '1.4697', '0.8203')
    """
    if name in POINTS:
        return f"{value:.2f}"
    if name in PLAIN or name in CORRELATIONS:
        return f"{value:.4f}"
    return f"{100 * value:.1f} %"


def shortened(text: str) -> str:
    """Text that does nothing to a terminal, and not too much of it."""
    shown = visible(text)
    return shown if len(shown) <= SHOWN else shown[: SHOWN - 1] + "…"
