"""The output of `qkv study`: a table and verdicts on the console, and a page to hand on."""

from collections.abc import Sequence
from html import escape
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from qkv.files import save_text
from qkv.render.formatting import plain_table
from qkv.render.learning_curves import draw_curves
from qkv.tasks.metrics.notation import find_scale, name_metric
from qkv.tasks.study import StudyResult, VariantRow
from qkv.tasks.study.paired import PairedDifference
from qkv.tasks.study.result import MetricComparison

CURVES, PAGE = "curves.svg", "study.html"
MATCHED = {"flops": "FLOPs", "parameters": "number of parameters", "tokens": "tokens", "seconds": "seconds of training"}
STYLE = (
    "body{font:16px/1.5 system-ui,sans-serif;max-width:60em;margin:2em auto;padding:0 1em;color:#1f2937}"
    "table{border-collapse:collapse}th,td{padding:.2em .8em;text-align:right;border-bottom:1px solid #e5e7eb}"
    "th:first-child,td:first-child{text-align:left}pre{overflow:auto;background:#f3f4f6;padding:1em}svg{max-width:100%}"
)


def print_study(result: StudyResult, console: Console) -> None:
    """Print the table of the variants, the verdicts and the notes."""
    headings, *rows = study_table(result)
    table: Table = plain_table(*headings)
    for row in rows:
        table.add_row(*row)
    console.print(table)
    for line in verdict_lines(result):
        console.print(Text(line), soft_wrap=True)
    for note in result.notes:
        console.print(Text(note, "yellow"), soft_wrap=True)


def study_table(result: StudyResult) -> list[list[str]]:
    """The headings, and a line for each variant."""
    headings = [
        "",
        f"{name_metric(result.metric)}, {result.seeds} seeds",
        "− baseline",
        "parameters",
        "FLOPs",
        "tokens",
    ]
    differences = {comparison.variant: comparison.difference for comparison in result.comparisons}
    lines = [[*headings, "seconds"]]
    for row in result.rows:
        difference = format_paired(result.metric, differences.get(row.name))
        flops = "unknown" if row.flops is None else f"{row.flops:.3g}"
        sizes = [f"{row.parameters:,}", flops, f"{row.tokens:,.0f}", f"{row.seconds:,.0f}"]
        lines.append([row.name, format_mean(result.metric, row), difference, *sizes])
    return lines


def print_variants(compared: Sequence[MetricComparison], main: str, num_records: int, console: Console) -> None:
    """Print the scores of the variants of a study on records, and the verdicts on the differences."""
    seeds = len(compared[0].values)
    table: Table = plain_table(f"{num_records:,} records, {seeds} seeds", "", "mean ± sd", "− baseline")
    for one in compared:
        value = format_value(one.metric, one.mean) + (
            "" if one.sd is None else f" ± {format_value(one.metric, one.sd)}"
        )
        heading = "" if one.difference else name_metric(one.metric)
        style = "bold" if one.metric == main else ""
        table.add_row(heading, one.variant, value, format_paired(one.metric, one.difference), style=style)
    console.print(table)
    for one in compared:
        if one.verdict:
            console.print(Text(f"{one.verdict}."), soft_wrap=True)


def format_paired(metric: str, found: PairedDifference | None) -> str:
    """A difference with its interval; "" if there is none."""
    if found is None:
        return ""
    ends = [] if found.interval is None else [format_value(metric, end, sign=True) for end in found.interval]
    return format_value(metric, found.mean, sign=True) + (f" [{', '.join(ends)}]" if ends else "")


def verdict_lines(result: StudyResult) -> list[str]:
    """The verdicts and the measurements behind them."""
    direction = "lower" if result.is_lower_better else "higher"
    equal = "the budget of the recipe" if result.match == "steps" else f"the same {MATCHED[result.match]}"
    lines = [comparison.verdict + "." for comparison in result.comparisons]
    lines.append(
        f"Each variant has {equal}; {name_metric(result.metric)} on the validation data, {direction} is better."
    )
    if len(result.comparisons) > 1:
        count = len(result.comparisons)
        lines.append(
            f"{count} comparisons: each interval has {100 * result.confidence:.3g} %, so that all hold with 95 %."
        )
    if result.flops_are_counted:
        lines.append("FLOPs are counted by running the networks, because a part does not state them.")
    if not result.is_complete:
        lines.append(f"{result.finished} of {result.runs} runs are finished; continue with: qkv study {result.folder}")
    return lines


def format_mean(metric: str, row: VariantRow) -> str:
    """The mean ± standard deviation."""
    if row.mean != row.mean:
        return "no finished run"
    return format_value(metric, row.mean) + ("" if row.sd is None else f" ± {format_value(metric, row.sd)}")


def format_value(metric: str, value: float, *, sign: bool = False) -> str:
    """A value of a metric, with enough digits for small differences.

    >>> format_value("loss", 1.23456), format_value("accuracy", -0.0123, sign=True)
    ('1.2346', '−1.23 %')
    """
    shown = f"{100 * abs(value):.2f} %" if find_scale(metric) == "fraction" else f"{abs(value):.4f}"
    return ("−" if value < 0 else "+" if sign else "") + shown


def write_study_page(result: StudyResult) -> Path:
    """Write the picture and the page into the folder of the study. Returns the path of the page."""
    folder = Path(result.folder)
    groups = {f"{row.name}-{number}": row.name for row in result.rows for number in range(result.seeds)}
    runs = {name: folder / name for name in groups if (folder / name / "metrics.jsonl").exists()}
    metric = "" if result.metric == "loss" else result.metric
    draw_curves(runs, folder / CURVES, title=folder.name, metric=metric, groups=groups)
    save_text(folder / PAGE, study_page(result, (folder / CURVES).read_text(encoding="utf-8")))
    return folder / PAGE


def study_page(result: StudyResult, curves: str) -> str:
    """One HTML page: the verdicts, the table, the values of each seed, the curves and the commands."""
    seeds = ["", *(f"seed {number}" for number in range(result.seeds))]
    values = [seeds, *([row.name, *(format_value(result.metric, one) for one in row.values)] for row in result.rows)]
    changes = [
        ["variant", "changes of the recipe", "to match", "tuned"],
        *([row.name, " ".join(row.overrides), " ".join(row.matched), " ".join(row.tuned)] for row in result.rows),
    ]
    parts = [
        f"<h1>{escape(result.recipe)}: {escape(name_metric(result.metric))}</h1>",
        *(f"<p>{escape(line)}</p>" for line in verdict_lines(result)),
        html_table(study_table(result)),
        *(f"<p>{escape(note)}</p>" for note in result.notes),
        f"<h2>Curves</h2>{curves}",
        f"<h2>Each seed</h2>{html_table(values)}",
        f"<h2>Variants</h2>{html_table(changes)}",
        f"<h2>Commands</h2><pre>{escape(chr(10).join(result.commands))}</pre>",
    ]
    head = f"<!doctype html><html lang='en'><meta charset='utf-8'><title>{escape(result.recipe)}</title>"
    return f"{head}<style>{STYLE}</style><body>{''.join(parts)}</body></html>\n"


def html_table(lines: Sequence[Sequence[str]]) -> str:
    """A table whose first line has the headings."""
    headings, *rows = lines
    head = "".join(f"<th>{escape(cell)}</th>" for cell in headings)
    body = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    return f"<table><tr>{head}</tr>{body}</table>"
