"""The output of `qkv eval INDEX`: the metrics of each search method."""

from rich.console import Console
from rich.text import Text

from qkv.render.evaluation import INTERVAL_HEADING, format_interval, format_metric
from qkv.render.formatting import escape_controls, plain_table
from qkv.search.evaluate import SearchEvaluation


def print_search_evaluation(index: str, result: SearchEvaluation, console: Console) -> None:
    """Print the metrics of each method with their intervals."""
    console.print(Text.assemble((escape_controls(index), "bold"), f"   {result.num_queries:,} queries"))
    table = plain_table("", "", " ", INTERVAL_HEADING)
    for name in next(iter(result.metrics.values())):
        heading = name.replace("_", " ")
        for method, scores in result.metrics.items():
            interval = Text(format_interval(name, result.intervals[method].get(name)), "dim")
            table.add_row(heading, method, format_metric(name, scores[name]), interval)
            heading = ""
    console.print(table)
    for note in result.notes:
        console.print(Text(escape_controls(note), "yellow"))
