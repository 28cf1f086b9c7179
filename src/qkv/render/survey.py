"""What `qkv data` shows: the files, their fields, how long examples are, what padding would cost, and what is wrong.

Users' text goes to the terminal here, so it is never read as markup, and control characters are drawn, not obeyed.
"""

from rich.bar import Bar
from rich.console import Console
from rich.table import Table
from rich.text import Text

from qkv.data.survey import DataSurvey, ExamplePreview, FieldSurvey, LengthStats, PaddingEstimate

# Control characters as their pictures; what turns the direction of text around as a plain box.
CONTROL_PICTURES = (
    {code: 0x2400 + code for code in range(32)} | {0x7F: 0x2421} | dict.fromkeys(range(0x80, 0xA0), 0xFFFD)
)
CONTROL_PICTURES |= dict.fromkeys([*range(0x202A, 0x202F), *range(0x2066, 0x206A)], 0xFFFD)

TOKEN_COLOURS = ("cyan", "yellow")  # of neighbouring tokens, in turn


def print_survey(survey: DataSurvey, console: Console) -> None:
    """The whole of `qkv data`.

    >>> print_survey(survey(Files("train.tsv")), Console())        # doctest: +SKIP
    """
    _files(survey, console)
    _fields(survey, console)
    for one in survey.fields:
        measured = one.tokens or one.characters
        if one.values:
            _labels(one, console)
        elif measured and one.value_type in ("text", "texts", "list"):
            _histogram(one.name, measured, "tokens" if one.tokens else "characters", console)
    if survey.padding:
        _padding(survey.padding, survey.unit, console)
    for shown in survey.previews:
        _example(shown, console)
    console.print()
    console.print(Text(escape_controls(str(survey.problems), keep="\n"), "red" if survey.problems.num_invalid else ""))


def escape_controls(text: str, keep: str = "") -> str:
    """Text that does nothing to a terminal.

    >>> escape_controls("a\\x1b[31m\\tb")
    'a␛[31m␉b'
    """
    return text.translate({code: picture for code, picture in CONTROL_PICTURES.items() if chr(code) not in keep})


def _plain(*headings: str) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="dim")
    for place, heading in enumerate(headings):
        table.add_column(heading, justify="right" if place else "left")
    return table


def _files(survey: DataSurvey, console: Console) -> None:
    table = _plain("file", "format", "size", "examples")
    for one in survey.files[:20]:
        table.add_row(Text(escape_controls(" + ".join(one.paths))), one.format, _size(one.bytes), f"{one.examples:,}")
    if len(survey.files) > 20:
        table.add_row(f"… and {len(survey.files) - 20:,} more", "", "", "")
    console.print(table)
    rest = "" if survey.complete else " (the first of more)"
    console.print(Text.assemble("\n", (f"{survey.examples:,} examples", "bold"), rest))


def _fields(survey: DataSurvey, console: Console) -> None:
    table = _plain("field", "kind", "in", "least", "median", "mean", "95 %", "99 %", "most")
    for one in survey.fields:
        share = "all" if one.num_present == survey.examples else f"{one.num_present / survey.examples:.1%}"
        name = Text(escape_controls(one.name))
        if one.values:
            table.add_row(
                name, f"{len(one.values)} {'labels' if one.value_type == 'label' else one.value_type}", share, *[""] * 6
            )
        elif one.characters is None:
            table.add_row(name, one.value_type, share, *[""] * 6)
        else:
            table.add_row(name, one.value_type, share, *_numbers(one.characters, "characters"))
        if one.tokens and not one.values:
            table.add_row("", "", "", *_numbers(one.tokens, "tokens"))
    console.print(table)


def _numbers(lengths: LengthStats, unit: str) -> list[str]:
    numbers = [lengths.min, lengths.median, round(lengths.mean, 1), lengths.p95, lengths.p99]
    return [f"{number:,}" for number in numbers] + [f"{lengths.max:,} {unit}"]


def _histogram(name: str, lengths: LengthStats, unit: str, console: Console) -> None:
    table = _plain(escape_controls(name), "examples", "")
    highest = max(count for _, _, count in lengths.bins)
    for begin, end, count in lengths.bins:
        span = f"{begin:,}" if begin == end else f"{begin:,} … {end:,}"
        table.add_row(f"{span} {unit}", f"{count:,}", Bar(highest, 0, count, width=40, color="cyan"))
    console.print()
    console.print(table)


def _labels(one: FieldSurvey, console: Console) -> None:
    table = _plain(escape_controls(one.name), "times", "")
    highest = max(one.values.values())
    for value, count in list(one.values.items())[:10]:
        table.add_row(Text(escape_controls(value)), f"{count:,}", Bar(highest, 0, count, width=40, color="cyan"))
    if len(one.values) > 10:
        table.add_row(f"… and {len(one.values) - 10} more", "", "")
    console.print()
    console.print(table)


def _padding(padding: PaddingEstimate, unit: str, console: Console) -> None:
    rows = " + ".join(f"{size:,}" for size in padding.sequence_lengths)
    table = _plain(f"padding of {escape_controls(', '.join(padding.fields))}", "share", "")
    for name, share in (
        (f"batches of {padding.batch_size} as they come", padding.unsorted),
        ("batches of like lengths", padding.by_length),
        (f"packed into rows of {rows} {unit}", padding.packed),
    ):
        table.add_row(name, f"{share:.1%}", Bar(1, 0, share, width=40, color="red"))
    console.print()
    console.print(table)
    if padding.too_long:
        console.print(f"{padding.too_long:,} examples are longer than a row of {rows} {unit}", style="yellow")


def _example(shown: ExamplePreview, console: Console) -> None:
    console.print()
    console.print(Text(escape_controls(shown.location), "dim"))
    for name, value in shown.fields.items():
        console.print(Text.assemble((f"{escape_controls(name)}: ", "bold"), escape_controls(value)))
        pieces = shown.tokens.get(name)
        if pieces:
            tokens = [
                ((escape_controls(piece) or "…") + "·", TOKEN_COLOURS[place % 2]) for place, piece in enumerate(pieces)
            ]
            console.print(Text.assemble(*tokens, (f" {len(pieces)} tokens", "dim")))


def _size(size: float) -> str:
    for unit in ("B", "kB", "MB", "GB"):
        if size < 1000:
            return f"{size:,.0f} {unit}" if unit == "B" else f"{size:,.1f} {unit}"
        size /= 1000
    return f"{size:,.1f} TB"
