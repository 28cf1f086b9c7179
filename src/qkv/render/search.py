"""The output of `qkv eval INDEX`: the metrics of each search method, and the differences of methods or indexes."""

from collections.abc import Mapping, Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from qkv.render.console import escape_controls
from qkv.render.evaluation import INTERVAL_HEADING, format_difference, format_interval, format_metric
from qkv.render.formatting import plain_table
from qkv.search.evaluate import SearchEvaluation
from qkv.search.results import Method
from qkv.tasks.metrics import Difference


def print_search_evaluation(index: str, result: SearchEvaluation, console: Console) -> None:
    """Print the metrics of each method with their intervals, and the differences of fused search and the others."""
    console.print(Text.assemble((escape_controls(index), "bold"), f"   {result.num_queries:,} queries"))
    table = plain_table("", "", " ", INTERVAL_HEADING, "p-value")
    for name in next(iter(result.metrics.values())):
        heading = name.replace("_", " ")
        for method in result.metrics:
            _add_score(table, [heading, method], result, method, name)
            heading = ""
        for method, differences in result.fused_differences.items():
            _add_difference(table, ["", f"fused − {method}"], name, differences.get(name))
    console.print(table)
    for note in result.notes:
        console.print(Text(escape_controls(note), "yellow"))


def print_search_comparison(
    indexes: Sequence[str],
    results: Sequence[SearchEvaluation],
    differences: Mapping[Method, Mapping[str, Difference]],
    console: Console,
) -> None:
    """Print the metrics of two indexes for each method, and their differences with intervals and p-values."""
    for letter, index, result in zip("AB", indexes, results, strict=True):
        label, num_queries = (escape_controls(index), "bold"), f"   {result.num_queries:,} queries"
        console.print(Text.assemble((f"{letter}  ", "dim"), label, num_queries))
    table = plain_table("", "", "", " ", INTERVAL_HEADING, "p-value")
    for name in next(iter(results[0].metrics.values())):
        headings = [name.replace("_", " ")]
        for method in differences:
            headings.append(method)
            for letter, result in zip("AB", results, strict=True):
                _add_score(table, [*headings, letter], result, method, name)
                headings = ["", ""]
            _add_difference(table, ["", "", "B − A"], name, differences[method].get(name))
            headings = [""]
    console.print(table)
    for letter, result in zip("AB", results, strict=True):
        for note in result.notes:
            console.print(Text(f"{letter}: {escape_controls(note)}", "yellow"))


def _add_score(table: Table, labels: Sequence[str], result: SearchEvaluation, method: Method, name: str) -> None:
    interval = Text(format_interval(name, result.intervals[method].get(name)), "dim")
    table.add_row(*labels, format_metric(name, result.metrics[method][name]), interval)


def _add_difference(table: Table, labels: Sequence[str], name: str, difference: Difference | None) -> None:
    if difference is None:  # no resamples, or a single query
        return
    low, high = (format_difference(name, end) for end in difference.interval)
    value = format_difference(name, difference.value)
    table.add_row(*labels, value, Text(f"{low} … {high}", "dim"), f"{difference.p_value:.3f}")
