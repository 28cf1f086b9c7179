"""The output of `qkv eval`: a table of the metrics, and examples with the model's predictions."""

from collections.abc import Mapping

from rich.console import Console
from rich.text import Text

from qkv.render.formatting import escape_controls, plain_table, truncate
from qkv.tasks.baseline import BASELINE_NAME
from qkv.tasks.task import Evaluation

SCORES_TO_100 = ("bleu", "bleu_lowercase", "tokenised_bleu", "sacrebleu", "chrf")
"""Metrics from 0 to 100, printed with two decimals."""
PLAIN_METRICS = (
    *("loss", "perplexity", "bits_per_character", "bits_per_byte"),
    *("matthews", "pearson", "spearman", "mean_reciprocal_rank"),
)
"""Metrics that are printed with four decimals. All other metrics are fractions, printed as percentages."""
MAX_TEXT_CHARS = 300


def print_evaluation(
    model: str, result: Evaluation, console: Console, baseline: Mapping[str, float] | None = None
) -> None:
    """Print the metrics, beside those of a baseline if there is one, and the examples."""
    console.print(Text.assemble((escape_controls(model), "bold"), f"   {result.num_records:,} records"))
    table = plain_table("", "model", BASELINE_NAME) if baseline else plain_table("", "", "")
    table.columns[1].justify = "right"
    for name, value in result.metrics.items():
        style = "bold" if name == result.main_metric else ""
        beside = Text(result.signatures.get(name, ""), "dim")
        if baseline:
            beside = Text(format_metric(name, baseline[name]), "dim")
        table.add_row(name.replace("_", " "), format_metric(name, value), beside, style=style)
    console.print(table)
    if baseline and baseline[result.main_metric] > result.metrics[result.main_metric]:
        console.print(
            Text(
                f"The baseline, {BASELINE_NAME} on the same training data, is better than this model. Train longer, or "
                "fine-tune a trained model: qkv init classify FILE --from MODEL",
                "yellow",
            )
        )
    for note in result.notes:
        console.print(Text(escape_controls(note, keep="\n"), "yellow"))
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
                Text.assemble((f"{name:<10}", "dim"), (truncate(escape_controls(text), MAX_TEXT_CHARS), style))
            )


def format_metric(name: str, value: float) -> str:
    """A metric in its usual notation.

    >>> format_metric("accuracy", 0.9512), format_metric("bleu", 41.018)
    ('95.1 %', '41.02')
    >>> format_metric("loss", 1.46971), format_metric("spearman", 0.82034)
    ('1.4697', '0.8203')
    """
    if name in SCORES_TO_100:
        return f"{value:.2f}"
    if name in PLAIN_METRICS:
        return f"{value:.4f}"
    return f"{100 * value:.1f} %"
