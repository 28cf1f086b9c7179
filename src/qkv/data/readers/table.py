"""CSV and TSV: one row a record.

CSV follows RFC 4180: a field in double quotes may hold delimiters, line ends and doubled quotes. TSV has no quoting
unless asked for: most of it is sentences, and a sentence may begin with a quotation mark. A quote that is never
closed would swallow the rest of the file; it is counted as one bad row, and reading goes on at the next line.

Many a CSV has semicolons, tabs or bars where commas should be: its first line tells.
"""

import csv
import re
from collections import deque
from collections.abc import Iterator
from pathlib import Path

from qkv.data.readers.columns import looks_like_data, numbered, places
from qkv.data.readers.find import EXTENSIONS, Part, extension
from qkv.data.readers.reading import Reading
from qkv.data.records import Record, Where
from qkv.errors import UsageError

ROW_LINES = 10_000  # a row may go over this many lines inside quotes
DELIMITERS = {";": "semicolons", "\t": "tabs", "|": "bars"}  # of a CSV without commas
QUOTED = re.compile(r'(?<![^,;\t|])"[^"]*(?:""[^"]*)*"?')  # a field in quotes, up to the line's end if it goes on there


def read_table(part: Part, reading: Reading) -> Iterator[Record]:
    """Rows of a CSV or TSV file as records; the header, or their number, names the columns."""
    path, options, problems = part.paths[0], reading.options, reading.problems
    file = str(path)
    header = options.header if options.header is not None else not numbered(options.columns)
    chosen: list[tuple[str, int]] = []
    width = 0
    for number, row in _rows(path, part.format, reading):
        if not width:
            width = len(row)
            names = _unique(row) if header else [str(place) for place in range(width)]
            chosen = places(options.columns, names, file)
            unsaid = header and options.header is None and options.columns is None
            if unsaid and 2 * sum(map(looks_like_data, row)) >= width:
                reason = (
                    "is read as the names of the columns, but looks like data; if it is, choose columns by number, say "
                    "--columns source=0 --columns target=1 on the command line, or "
                    'data.columns = {source = "0", target = "1"} in a recipe'
                )
                problems.note("first line", Where(file, number), reason)
            if header:
                continue
        problems.seen += 1
        if len(row) == width:
            yield Record({field: row[place] for field, place in chosen}, Where(file, number))
        else:
            reason = f"{len(row)} columns where the first row has {width}"
            problems.skip("wrong number of columns", Where(file, number), reason)


def _rows(path: Path, format: str, reading: Reading) -> Iterator[tuple[int, list[str]]]:
    """(line number, cells) of every row that is not blank; bad rows are reported and left out."""
    options, problems = reading.options, reading.problems
    delimiter = options.delimiter or ("\t" if format == "tsv" else "")  # "": the first line tells
    quoting = options.quote if options.quote is not None else format == "csv"
    if len(delimiter) > 1 or delimiter in ('"', "\r", "\n"):
        raise UsageError(f"a delimiter is one character, and no quote or line end; not {delimiter!r}")
    source = _Lines(path, reading)
    quoted_looking = 0
    for number, line in source:
        if line and not delimiter:
            delimiter = _delimiter(path, QUOTED.sub("", line) if quoting else line)
            if delimiter != ",":
                reason = f"the file is read as separated by {DELIMITERS[delimiter]}, not commas"
                problems.note("delimiter", Where(str(path), number), reason)
        if not line:
            problems.note("blank line", Where(str(path), number), "blank lines are left out")
        elif '"' not in line:
            yield number, line.split(delimiter)
        elif quoting:
            row = _quoted_row(line, number, delimiter, source, reading)
            if row is not None:
                yield number, row
        else:
            quoted_looking += '""' in line
            yield number, line.split(delimiter)
    if quoted_looking:
        reason = (
            'rows hold doubled quotes ("") but are read without quoting; if they are quoted, read the file as '
            'format = "csv", which takes tabs too'
        )
        problems.note("quotes in TSV", Where(str(path)), reason, quoted_looking)


def _delimiter(path: Path, line: str) -> str:
    """What separates the cells of a CSV, by its first line without quoted fields: commas, or what comes most often.

    >>> [_delimiter(Path("a.csv"), line) for line in ("a;b,c", "a;b", "a|b|c;d", "text")]
    [',', ';', '|', ',']
    """
    if EXTENSIONS.get(extension(path)) == "tsv" and "\t" in line:
        return "\t"  # it is read as CSV for its quotes
    likely = max(DELIMITERS, key=line.count)
    return likely if likely in line and "," not in line else ","


def _quoted_row(line: str, number: int, delimiter: str, source: "_Lines", reading: Reading) -> list[str] | None:
    """A row with quotes, which may go on over further lines; None once reported as bad."""
    took: list[tuple[int, str]] = []  # the further lines
    size = 0

    def feed() -> Iterator[str]:
        nonlocal size
        yield line + "\n"
        for further in source:
            took.append(further)
            size += len(further[1])
            if len(took) > ROW_LINES or size > reading.options.limits.line_bytes:
                return
            yield further[1] + "\n"

    csv.field_size_limit(max(csv.field_size_limit(), reading.options.limits.line_bytes))
    try:
        return next(csv.reader(feed(), delimiter=delimiter, strict=True))
    except csv.Error as error:
        source.give_back(took)
        reading.problems.seen += 1
        reason = "a quote that opens here is not closed" if "unexpected end" in str(error) else str(error)
        reading.problems.skip("bad quoting", Where(str(source.path), number), reason)
        return None


class _Lines:
    """The usable lines of a file; lines can be given back to be read again."""

    def __init__(self, path: Path, reading: Reading):
        self.path = path
        self._problems = reading.problems
        self._source = reading.lines(path, note_returns=False)  # RFC 4180 ends lines in CR LF
        self._again: deque[tuple[int, str]] = deque()

    def __iter__(self) -> "_Lines":
        return self

    def __next__(self) -> tuple[int, str]:
        if self._again:
            return self._again.popleft()
        for number, line in self._source:
            if line is not None:
                return number, line
            self._problems.seen += 1
        raise StopIteration

    def give_back(self, lines: list[tuple[int, str]]) -> None:
        self._again.extendleft(reversed(lines))


def _unique(header: list[str]) -> list[str]:
    """Names from a header row: an empty one becomes its number, a repeated one gets a number behind it.

    >>> _unique(["", "text", "text"])
    ['0', 'text', 'text_2']
    """
    names: list[str] = []
    for place, cell in enumerate(header):
        name = cell.strip() or str(place)
        copies = sum(other == name or other.startswith(f"{name}_") for other in names)
        names.append(f"{name}_{copies + 1}" if name in names else name)
    return names
