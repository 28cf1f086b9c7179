"""The output of `qkv eval INDEX`: the metrics of each search method."""

from rich.console import Console
from rich.text import Text

from qkv.render.evaluation import INTERVAL_HEADING, format_interval, format_metric
from qkv.render.formatting import escape_controls, plain_table
from qkv.search.evaluate import SearchEvaluation


def print_search_evaluation(index: str, result: SearchEvaluation, console: Console) -> None:
    """Print the metrics of each method with their intervals."""
    console.print(Text.assemble((escape_controls(index), "bold"), f"   {result.num_queries:,} queries"))
    table = plain_table("", *(heading for method in result.metrics for heading in (method, INTERVAL_HEADING)))
    for name in next(iter(result.metrics.values())):
        cells = []
        for method, scores in result.metrics.items():
            cells.append(Text(format_metric(name, scores[name])))
            cells.append(Text(format_interval(name, result.intervals[method].get(name)), "dim"))
        table.add_row(name.replace("_", " "), *cells, style="bold" if name.startswith("ndcg") else "")
    console.print(table)
    for note in result.notes:
        console.print(Text(escape_controls(note), "yellow"))
