"""The output of `qkv models`: the bundled models, and the runs."""

from collections.abc import Sequence

from rich.console import Console
from rich.text import Text

from qkv.render.console import escape_controls
from qkv.render.formatting import format_count, plain_table
from qkv.tasks.model_list import ListedModel


def print_models(models: Sequence[ListedModel], console: Console) -> None:
    """Print a line for each model: name, task, size, scores, and the licence or the state."""
    table = plain_table("", "", "", "", "")
    for title, place in (("bundled", "bundled"), ("runs", "runs")):
        chosen = [model for model in models if model.place == place]
        table.add_row(f"[bold]{title}[/bold]" if chosen else f"[bold]{title}[/bold]: none")
        for model in chosen:
            size = format_count(model.bytes, "B") if model.bytes else ""
            cells = (model.name, model.task, size, model.scores, model.licence or model.state)
            table.add_row(*(Text(escape_controls(cell)) for cell in cells))
    console.print(table, highlight=False)
    if any(model.place == "bundled" for model in models):
        console.print('for example: qkv run en-fr "The cat chased the mouse."', highlight=False, markup=False)
