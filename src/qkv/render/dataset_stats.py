"""The output of `qkv data`: the files, their fields, the lengths of examples, padding, first examples and problems."""

from rich.bar import Bar
from rich.console import Console
from rich.text import Text

from qkv.data.dataset_stats import DatasetStats, ExamplePreview, FieldStats, LengthStats, PaddingEstimate
from qkv.errors import count_nouns
from qkv.render.console import escape_controls
from qkv.render.formatting import format_count, plain_table

MAX_FIELDS_SHOWN = 30  # of a table with more columns, the first ones are shown; --json has all of them
TOKEN_COLOURS = ("cyan", "yellow")  # used in turn, so that neighbouring tokens differ


def print_dataset_stats(stats: DatasetStats, console: Console) -> None:
    """Print a stats.

    >>> print_dataset_stats(compute_stats(DataFiles("train.tsv")), Console())        # doctest: +SKIP
    """
    _print_files(stats, console)
    _print_fields(stats, console)
    for field in stats.fields[:MAX_FIELDS_SHOWN]:
        lengths = field.tokens or field.characters
        if field.values:
            _print_labels(field, console)
        elif lengths and field.value_type in ("text", "protein", "texts", "list"):
            _print_histogram(field.name, lengths, "tokens" if field.tokens else "characters", console)
    if stats.padding:
        _print_padding(stats.padding, stats.unit, console)
    for preview in stats.previews:
        _print_example(preview, console)
    console.print()
    console.print(Text(escape_controls(str(stats.problems), keep="\n"), "red" if stats.problems.num_invalid else ""))


def _print_files(stats: DatasetStats, console: Console) -> None:
    table = plain_table("file", "format", "size", "examples")
    for file in stats.files[:20]:
        name = Text(escape_controls(" + ".join(file.paths)))
        table.add_row(name, file.format, format_count(file.bytes, "B"), f"{file.examples:,}")
    if len(stats.files) > 20:
        table.add_row(f"… and {len(stats.files) - 20:,} more", "", "", "")
    console.print(table)
    rest = "" if stats.complete else " (only the first ones were read)"
    console.print(Text.assemble("\n", (count_nouns(stats.examples, "example"), "bold"), rest))


def _print_fields(stats: DatasetStats, console: Console) -> None:
    table = plain_table("field", "type", "in", "min", "median", "mean", "95 %", "99 %", "max")
    for field in stats.fields[:MAX_FIELDS_SHOWN]:
        present = "all" if field.num_present == stats.examples else f"{field.num_present / stats.examples:.1%}"
        kind, lengths = field.value_type, [""] * 6
        if field.values:
            kind = f"{len(field.values)} {'labels' if kind == 'label' else kind}"
        elif field.characters is not None:
            lengths = _format_length_stats(field.characters, "characters")
        table.add_row(Text(escape_controls(field.name)), kind, present, *lengths)
        if field.tokens and not field.values:
            table.add_row("", "", "", *_format_length_stats(field.tokens, "tokens"))
    if len(stats.fields) > MAX_FIELDS_SHOWN:
        table.add_row(f"… and {len(stats.fields) - MAX_FIELDS_SHOWN:,} more (--json shows all)", *[""] * 8)
    console.print(table)


def _format_length_stats(lengths: LengthStats, unit: str) -> list[str]:
    numbers = [lengths.min, lengths.median, round(lengths.mean, 1), lengths.p95, lengths.p99]
    return [f"{number:,}" for number in numbers] + [f"{lengths.max:,} {unit}"]


def _print_histogram(name: str, lengths: LengthStats, unit: str, console: Console) -> None:
    table = plain_table(escape_controls(name), "examples", "")
    highest = max(count for _, _, count in lengths.bins)
    for begin, end, count in lengths.bins:
        span = f"{begin:,}" if begin == end else f"{begin:,} … {end:,}"
        table.add_row(f"{span} {unit}", f"{count:,}", Bar(highest, 0, count, width=40, color="cyan"))
    console.print()
    console.print(table)


def _print_labels(field: FieldStats, console: Console) -> None:
    table = plain_table(escape_controls(field.name), "count", "")
    highest = max(field.values.values())
    for value, count in list(field.values.items())[:10]:
        table.add_row(Text(escape_controls(value)), f"{count:,}", Bar(highest, 0, count, width=40, color="cyan"))
    if len(field.values) > 10:
        table.add_row(f"… and {len(field.values) - 10} more", "", "")
    console.print()
    console.print(table)


def _print_padding(padding: PaddingEstimate, unit: str, console: Console) -> None:
    lengths = " + ".join(f"{size:,}" for size in padding.sequence_lengths)
    more = ", …" if len(padding.fields) > MAX_FIELDS_SHOWN else ""
    names = escape_controls(", ".join(padding.fields[:MAX_FIELDS_SHOWN])) + more
    table = plain_table(f"padding of {names}", "fraction", "")
    for name, fraction in (
        (f"batches of {padding.batch_size} in their order in the file", padding.unsorted),
        ("batches of similar lengths", padding.by_length),
        (f"packed into sequences of {lengths} {unit}", padding.packed),
    ):
        table.add_row(name, f"{fraction:.1%}", Bar(1, 0, fraction, width=40, color="red"))
    console.print()
    console.print(table)
    if padding.too_long:
        console.print(f"{padding.too_long:,} examples are longer than {lengths} {unit}", style="yellow")


def _print_example(preview: ExamplePreview, console: Console) -> None:
    console.print()
    console.print(Text(escape_controls(preview.location), "dim"))
    for name, value in list(preview.fields.items())[:MAX_FIELDS_SHOWN]:
        console.print(Text.assemble((f"{escape_controls(name)}: ", "bold"), escape_controls(value)))
        tokens = preview.tokens.get(name)
        if tokens:
            parts = [((escape_controls(token) or "…") + "·", TOKEN_COLOURS[i % 2]) for i, token in enumerate(tokens)]
            console.print(Text.assemble(*parts, (f" {len(tokens)} tokens", "dim")))
