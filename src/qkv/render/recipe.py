"""What `qkv train RECIPE --dry-run` shows: the recipe in full, the model, its memory, the data, and what is noteworthy.

Users' text goes to the terminal here, so it is never read as markup, and control characters are drawn, not obeyed.
"""

from rich.bar import Bar
from rich.console import Console
from rich.table import Table
from rich.text import Text

from qkv.render.info import FAMILIES, add_parameters, count
from qkv.render.survey import visible
from qkv.tasks.describe import Description, Example
from qkv.tasks.prepare_memory import Memory


def render(description: Description, console: Console) -> None:
    """The whole of `--dry-run`.

    >>> render(describe(read("translate.toml")), Console())        # doctest: +SKIP
    """
    console.print(Text(visible(description.recipe, keep="\n").rstrip()))
    _model(description, console)
    _memory(description.memory, console)
    _data(description, console)
    for example in description.first:
        _example(example, console)
    if description.notes:
        console.print()
    for note in description.notes:
        console.print(Text(visible(note, keep="\n")))


def _plain(*columns: str) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False)
    for place, name in enumerate(columns):
        table.add_column(name, justify="left" if place == 0 or not name else "right", header_style="bold")
    return table


def _model(description: Description, console: Console) -> None:
    books = description.account
    table = _plain(f"{FAMILIES[books.family]}, {description.head} head", "parameters", "share", "")
    add_parameters(table, books)
    if description.memory.trained != books.total:
        table.add_row("trained", count(description.memory.trained), "", "")
    console.print()
    console.print(table)
    if description.labels:
        names = ", ".join(description.labels[:20]) + (" …" if len(description.labels) > 20 else "")
        console.print(Text.assemble((f"{len(description.labels)} classes: ", "bold"), visible(names)))


def _memory(memory: Memory, console: Console) -> None:
    table = _plain("memory, an estimate", "bytes", "")
    named = {
        "weights": memory.weights,
        "gradients": memory.gradients,
        "optimizer": memory.optimizer,
        "average of the weights": memory.averages,
        f"activations of {memory.places:,} places in {memory.precision}": memory.activations,
    }
    for name, size in named.items():
        if size:
            table.add_row(name, count(size, "B"), Bar(memory.total, 0, size, width=30, color="magenta"))
    table.add_row("total", count(memory.total, "B"), "", style="bold")
    console.print()
    console.print(table)


def _data(description: Description, console: Console) -> None:
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, show_header=False)
    table.add_column()
    table.add_column(justify="right")
    rows = " + ".join(f"{size:,}" for size in reversed(description.rows))
    table.add_row("records", f"{description.records:,}")
    table.add_row("examples an epoch", f"{description.examples:,}")
    table.add_row("tokens an epoch", count(description.tokens))
    table.add_row("pieces of the tokenizer", f"{description.tokenizer:,}")
    table.add_row("a row", f"{rows} places")
    table.add_row("rows a step", f"{description.rows_a_step:,.0f}")
    table.add_row("padding", f"{description.padding:.1%}")
    if description.steps_an_epoch is not None:
        table.add_row("steps an epoch, about", f"{description.steps_an_epoch:,}")
    table.add_row("examples to validate on", f"{description.validation:,}")
    budget = ", ".join(f"{value:g} {name}" for name, value in description.budget.items())
    table.add_row("budget", budget)
    console.print()
    console.print(table)


def _example(example: Example, console: Console) -> None:
    console.print()
    console.print(Text(visible(example.origin), "dim"))
    for name, text in example.parts.items():
        console.print(Text.assemble((f"{name}: ", "bold"), visible(text)))
