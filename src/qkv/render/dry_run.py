"""The output of `qkv train RECIPE --dry-run`: the full recipe, the model, its memory, the data, and notes."""

from rich.bar import Bar
from rich.console import Console
from rich.text import Text

from qkv.render.console import escape_controls
from qkv.render.formatting import format_count, plain_table
from qkv.render.info import FAMILY_NAMES, add_parameter_rows
from qkv.tasks.describe import Description, RecipeExample
from qkv.tasks.prepare.memory import MemoryEstimate


def print_dry_run(description: Description, console: Console) -> None:
    """Print the description of a recipe, which `describe` returns.

    >>> print_dry_run(describe(read("translate.toml")), Console())        # doctest: +SKIP
    """
    console.print(Text(escape_controls(description.recipe, keep="\n").rstrip()))
    _print_model(description, console)
    _print_memory(description.memory, console)
    _print_data(description, console)
    for example in description.first_examples:
        _print_example(example, console)
    if description.notes:
        console.print()
    for note in description.notes:
        console.print(Text(escape_controls(note, keep="\n")))


def _print_model(description: Description, console: Console) -> None:
    summary = description.model_summary
    title = f"{FAMILY_NAMES[summary.family]}, {description.head} head"
    table = plain_table(title, "parameters", "fraction", "", header_style="bold")
    add_parameter_rows(table, summary)
    if description.memory.trainable != summary.total:
        table.add_row("trainable", format_count(description.memory.trainable), "", "")
    console.print()
    console.print(table)
    if description.labels:
        names = ", ".join(description.labels[:20]) + (" …" if len(description.labels) > 20 else "")
        console.print(Text.assemble((f"{len(description.labels)} classes: ", "bold"), escape_controls(names)))


def _print_memory(memory: MemoryEstimate, console: Console) -> None:
    table = plain_table("memory (estimate)", "bytes", "", header_style="bold")
    sizes = {
        "weights": memory.weights,
        "gradients": memory.gradients,
        "optimizer": memory.optimizer,
        "moving average of the weights": memory.ema,
        f"activations of {memory.tokens:,} tokens in {memory.precision}": memory.activations,
    }
    for name, size in sizes.items():
        if size:
            table.add_row(name, format_count(size, "B"), Bar(memory.total, 0, size, width=30, color="magenta"))
    table.add_row("total", format_count(memory.total, "B"), "", style="bold")
    console.print()
    console.print(table)


def _print_data(description: Description, console: Console) -> None:
    table = plain_table("", "")
    table.columns[1].justify = "right"
    lengths = " + ".join(f"{size:,}" for size in reversed(description.sequence_lengths))
    rows = {
        "records": f"{description.records:,}",
        "examples per epoch": f"{description.examples:,}",
        "tokens per epoch": format_count(description.tokens),
        "vocabulary of the tokenizer": f"{description.vocab_size:,}",
        "sequence length": f"{lengths} tokens",
        "sequences per step": f"{description.sequences_per_step:,.0f}",
        "padding": f"{description.padding_fraction:.1%}",
        "steps per epoch, about": f"{description.steps_per_epoch:,}" if description.steps_per_epoch else "",
        "validation examples": f"{description.validation_examples:,}",
        "budget": ", ".join(f"{value:g} {name}" for name, value in description.budget.items()),
    }
    for name, value in rows.items():
        if value:
            table.add_row(name, value)
    console.print()
    console.print(table)


def _print_example(example: RecipeExample, console: Console) -> None:
    console.print()
    console.print(Text(escape_controls(example.origin), "dim"))
    for name, text in example.parts.items():
        console.print(Text.assemble((f"{name}: ", "bold"), escape_controls(text)))
