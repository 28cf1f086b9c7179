"""The output of `qkv models`: the models in the box, and the runs."""

from collections.abc import Sequence

from rich.console import Console
from rich.text import Text

from qkv.render.formatting import escape_controls, format_count, plain_table
from qkv.tasks.model_list import ListedModel


def print_models(models: Sequence[ListedModel], console: Console) -> None:
    """Print a line for each model: name, task, size, scores, and the licence or the state."""
    table = plain_table("", "", "", "", "")
    for title, place in (("in the box", "box"), ("runs", "runs")):
        chosen = [one for one in models if one.place == place]
        table.add_row(f"[bold]{title}[/bold]" if chosen else f"[bold]{title}[/bold]: none")
        for one in chosen:
            size = format_count(one.bytes, "B") if one.bytes else ""
            cells = (one.name, one.task, size, one.scores, one.licence or one.state)
            table.add_row(*(Text(escape_controls(cell)) for cell in cells))
    console.print(table, highlight=False)
    if any(one.place == "box" for one in models):
        console.print('for example: qkv run en-fr "The cat chased the mouse."', highlight=False, markup=False)
