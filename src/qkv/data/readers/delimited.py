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

from qkv.data.readers.columns import chosen_by_number, column_indices, looks_like_data
from qkv.data.readers.find_files import FORMAT_BY_EXTENSION, FileGroup, format_extension
from qkv.data.readers.options import ReadContext
from qkv.data.records import FileLocation, Record
from qkv.errors import UsageError

MAX_ROW_LINES = 10_000  # a row may go over this many lines inside quotes
DELIMITER_NAMES = {";": "semicolons", "\t": "tabs", "|": "bars"}  # of a CSV without commas
QUOTED_FIELD = re.compile(
    r'(?<![^,;\t|])"[^"]*(?:""[^"]*)*"?'
)  # a field in quotes, up to the line's end if it goes on there


def read_delimited(group: FileGroup, context: ReadContext) -> Iterator[Record]:
    """Rows of a CSV or TSV file as records; the header, or their number, names the columns."""
    path, options, problems = group.paths[0], context.options, context.problems
    file = str(path)
    header = options.header if options.header is not None else not chosen_by_number(options.columns)
    chosen: list[tuple[str, int]] = []
    width = 0
    for number, row in _split_rows(path, group.format, context):
        if not width:
            width = len(row)
            names = _unique_names(row) if header else [str(place) for place in range(width)]
            chosen = column_indices(options.columns, names, file)
            unsaid = header and options.header is None and options.columns is None
            if unsaid and 2 * sum(map(looks_like_data, row)) >= width:
                reason = (
                    "is read as the names of the columns, but looks like data; if it is, choose columns by number, say "
                    "--columns source=0 --columns target=1 on the command line, or "
                    'data.columns = {source = "0", target = "1"} in a recipe'
                )
                problems.note("first line", FileLocation(file, number), reason)
            if header:
                continue
        problems.num_seen += 1
        if len(row) == width:
            yield Record({field: row[place] for field, place in chosen}, FileLocation(file, number))
        else:
            reason = f"{len(row)} columns where the first row has {width}"
            problems.skip("wrong number of columns", FileLocation(file, number), reason)


def _split_rows(path: Path, format: str, context: ReadContext) -> Iterator[tuple[int, list[str]]]:
    """(line number, cells) of every row that is not blank; bad rows are reported and left out."""
    options, problems = context.options, context.problems
    delimiter = options.delimiter or ("\t" if format == "tsv" else "")  # "": the first line tells
    quoting = options.quote if options.quote is not None else format == "csv"
    if len(delimiter) > 1 or delimiter in ('"', "\r", "\n"):
        raise UsageError(f"a delimiter is one character, and no quote or line end; not {delimiter!r}")
    source = _LineBuffer(path, context)
    quoted_looking = 0
    for number, line in source:
        if line and not delimiter:
            delimiter = _detect_delimiter(path, QUOTED_FIELD.sub("", line) if quoting else line)
            if delimiter != ",":
                reason = f"the file is read as separated by {DELIMITER_NAMES[delimiter]}, not commas"
                problems.note("delimiter", FileLocation(str(path), number), reason)
        if not line:
            problems.note("blank line", FileLocation(str(path), number), "blank lines are left out")
        elif '"' not in line:
            yield number, line.split(delimiter)
        elif quoting:
            row = _parse_quoted_row(line, number, delimiter, source, context)
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
        problems.note("quotes in TSV", FileLocation(str(path)), reason, quoted_looking)


def _detect_delimiter(path: Path, line: str) -> str:
    """What separates the cells of a CSV, by its first line without quoted fields: commas, or what comes most often.

    >>> [_detect_delimiter(Path("a.csv"), line) for line in ("a;b,c", "a;b", "a|b|c;d", "text")]
    [',', ';', '|', ',']
    """
    if FORMAT_BY_EXTENSION.get(format_extension(path)) == "tsv" and "\t" in line:
        return "\t"  # it is read as CSV for its quotes
    likely = max(DELIMITER_NAMES, key=line.count)
    return likely if likely in line and "," not in line else ","


def _parse_quoted_row(
    line: str, number: int, delimiter: str, source: "_LineBuffer", context: ReadContext
) -> list[str] | None:
    """A row with quotes, which may go on over further lines; None once reported as bad."""
    took: list[tuple[int, str]] = []  # the further lines
    size = 0

    def feed() -> Iterator[str]:
        nonlocal size
        yield line + "\n"
        for further in source:
            took.append(further)
            size += len(further[1])
            if len(took) > MAX_ROW_LINES or size > context.options.limits.max_line_bytes:
                return
            yield further[1] + "\n"

    csv.field_size_limit(max(csv.field_size_limit(), context.options.limits.max_line_bytes))
    try:
        return next(csv.reader(feed(), delimiter=delimiter, strict=True))
    except csv.Error as error:
        source.push_back(took)
        context.problems.num_seen += 1
        reason = "a quote that opens here is not closed" if "unexpected end" in str(error) else str(error)
        context.problems.skip("bad quoting", FileLocation(str(source.path), number), reason)
        return None


class _LineBuffer:
    """The usable lines of a file; lines can be given back to be read again."""

    def __init__(self, path: Path, context: ReadContext):
        self.path = path
        self._problems = context.problems
        self._source = context.lines(path, report_crlf=False)  # RFC 4180 ends lines in CR LF
        self._again: deque[tuple[int, str]] = deque()

    def __iter__(self) -> "_LineBuffer":
        return self

    def __next__(self) -> tuple[int, str]:
        if self._again:
            return self._again.popleft()
        for number, line in self._source:
            if line is not None:
                return number, line
            self._problems.num_seen += 1
        raise StopIteration

    def push_back(self, lines: list[tuple[int, str]]) -> None:
        self._again.extendleft(reversed(lines))


def _unique_names(header: list[str]) -> list[str]:
    """Names from a header row: an empty one becomes its number, a repeated one gets a number behind it.

    >>> _unique_names(["", "text", "text"])
    ['0', 'text', 'text_2']
    """
    names: list[str] = []
    for place, cell in enumerate(header):
        name = cell.strip() or str(place)
        copies = sum(other == name or other.startswith(f"{name}_") for other in names)
        names.append(f"{name}_{copies + 1}" if name in names else name)
    return names
