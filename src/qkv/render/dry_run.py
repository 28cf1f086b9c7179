"""What `qkv train RECIPE --dry-run` shows: the recipe in full, the model, its memory, the data, and what is noteworthy.

Users' text goes to the terminal here, so it is never read as markup, and control characters are drawn, not obeyed.
"""

from rich.bar import Bar
from rich.console import Console
from rich.table import Table
from rich.text import Text

from qkv.render.info import FAMILY_NAMES, add_parameter_rows, format_count
from qkv.render.survey import escape_controls
from qkv.tasks.describe import Description, ExamplePreview
from qkv.tasks.prepare.memory import MemoryEstimate


def print_dry_run(description: Description, console: Console) -> None:
    """The whole of `--dry-run`.

    >>> print_dry_run(describe(read("translate.toml")), Console())        # doctest: +SKIP
    """
    console.print(Text(escape_controls(description.recipe, keep="\n").rstrip()))
    _model(description, console)
    _memory(description.memory, console)
    _data(description, console)
    for example in description.first_examples:
        _example(example, console)
    if description.notes:
        console.print()
    for note in description.notes:
        console.print(Text(escape_controls(note, keep="\n")))


def _plain(*columns: str) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False)
    for place, name in enumerate(columns):
        table.add_column(name, justify="left" if place == 0 or not name else "right", header_style="bold")
    return table


def _model(description: Description, console: Console) -> None:
    books = description.account
    table = _plain(f"{FAMILY_NAMES[books.family]}, {description.head} head", "parameters", "share", "")
    add_parameter_rows(table, books)
    if description.memory.trainable != books.total:
        table.add_row("trained", format_count(description.memory.trainable), "", "")
    console.print()
    console.print(table)
    if description.labels:
        names = ", ".join(description.labels[:20]) + (" …" if len(description.labels) > 20 else "")
        console.print(Text.assemble((f"{len(description.labels)} classes: ", "bold"), escape_controls(names)))


def _memory(memory: MemoryEstimate, console: Console) -> None:
    table = _plain("memory, an estimate", "bytes", "")
    named = {
        "weights": memory.weights,
        "gradients": memory.gradients,
        "optimizer": memory.optimizer,
        "average of the weights": memory.ema,
        f"activations of {memory.tokens:,} places in {memory.precision}": memory.activations,
    }
    for name, size in named.items():
        if size:
            table.add_row(name, format_count(size, "B"), Bar(memory.total, 0, size, width=30, color="magenta"))
    table.add_row("total", format_count(memory.total, "B"), "", style="bold")
    console.print()
    console.print(table)


def _data(description: Description, console: Console) -> None:
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, show_header=False)
    table.add_column()
    table.add_column(justify="right")
    rows = " + ".join(f"{size:,}" for size in reversed(description.sequence_lengths))
    table.add_row("records", f"{description.records:,}")
    table.add_row("examples an epoch", f"{description.examples:,}")
    table.add_row("tokens an epoch", format_count(description.tokens))
    table.add_row("pieces of the tokenizer", f"{description.vocab_size:,}")
    table.add_row("a row", f"{rows} places")
    table.add_row("rows a step", f"{description.sequences_per_step:,.0f}")
    table.add_row("padding", f"{description.padding_fraction:.1%}")
    if description.steps_per_epoch is not None:
        table.add_row("steps an epoch, about", f"{description.steps_per_epoch:,}")
    table.add_row("examples to validate on", f"{description.validation_examples:,}")
    budget = ", ".join(f"{value:g} {name}" for name, value in description.budget.items())
    table.add_row("budget", budget)
    console.print()
    console.print(table)


def _example(example: ExamplePreview, console: Console) -> None:
    console.print()
    console.print(Text(escape_controls(example.origin), "dim"))
    for name, text in example.parts.items():
        console.print(Text.assemble((f"{name}: ", "bold"), escape_controls(text)))
