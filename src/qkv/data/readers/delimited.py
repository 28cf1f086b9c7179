"""CSV and TSV: one row is one record.

CSV follows RFC 4180: a field in double quotes may contain delimiters, line ends and doubled quotes. TSV has no
quoting by default: most of it is sentences, and a sentence may begin with a quotation mark. A quote that is never
closed would swallow the rest of the file; it is counted as one invalid row, and reading continues at the next line.

Many CSV files use semicolons, tabs or bars instead of commas: the delimiter is detected in the first line.
"""

import csv
import re
from collections import Counter, deque
from collections.abc import Iterator
from itertools import chain, islice
from pathlib import Path

from qkv.data.problems import Problems
from qkv.data.readers.columns import MAX_ROWS_COMPARED, all_columns_are_indices, column_indices, is_data_row
from qkv.data.readers.find_files import FileGroup, format_extension
from qkv.data.readers.formats import FORMAT_BY_EXTENSION
from qkv.data.readers.lines import read_lines
from qkv.data.readers.options import ReadContext
from qkv.data.records import FileLocation, Record
from qkv.errors import UsageError

MAX_TITLE_LINES = 20  # lines that are searched for a delimiter
MAX_ROW_LINES = 10_000  # lines that a row with quotes may span
DELIMITER_NAMES = {";": "semicolons", "\t": "tabs", "|": "bars"}  # of a CSV without commas
NumberedLine = tuple[int, str | None]
"""A line number, and the text, or None if the line is unusable, as `read_lines` yields them."""
QUOTED_FIELD = re.compile(r'(?<![^,;\t|])"[^"]*(?:""[^"]*)*"?')  # without a closing quote: to the end of the line


def read_delimited(group: FileGroup, context: ReadContext) -> Iterator[Record]:
    """The rows of a CSV or TSV file as records; the header or numbers name the columns.

    By default the first row is a header unless `columns` are chosen by number, or the row looks like data.
    """
    path, options, problems = group.paths[0], context.options, context.problems
    file = str(path)
    rows = _split_rows(path, group.format, context)
    first_rows = list(islice(rows, MAX_ROWS_COMPARED))
    if not first_rows:
        return
    width = usual_width([row for _, row in first_rows])
    while len(first_rows[0][1]) != width:  # a title, or a broken line
        number, row = first_rows.pop(0)
        problems.num_seen += 1
        reason = f"{len(row)} columns, but most rows have {width}"
        problems.skip("wrong number of columns", FileLocation(file, number), reason)
    number, names = first_rows[0]
    header = options.header if options.header is not None else not all_columns_are_indices(options.columns)
    others = [row for _, row in first_rows[1:]]
    if options.header is None and options.columns is None and is_data_row(names, others):
        header = False
        reason = (
            "is read as data, because it does not look like names of columns, so the columns have numbers from 0; if "
            "it has names, choose columns by name: --columns FIELD=NAME, or data.columns in a recipe"
        )
        problems.note("first line", FileLocation(file, number), reason)
    names = _unique_names(names) if header else [str(index) for index in range(width)]
    columns = column_indices(options.columns, names, file)
    for number, row in chain(first_rows[header:], rows):
        problems.num_seen += 1
        if len(row) == width:
            yield Record({field: row[index] for field, index in columns}, FileLocation(file, number))
        else:
            reason = f"{len(row)} columns, but most rows have {width}"
            problems.skip("wrong number of columns", FileLocation(file, number), reason)


def usual_width(rows: list[list[str]]) -> int:
    """The number of columns that most of the first rows have. If two numbers are equally frequent, the earlier row
    decides.

    >>> usual_width([["My reviews"], ["text", "label"], ["good", "1"]]), usual_width([["a", "b"], ["c"]])
    (2, 2)
    """
    widths = Counter(map(len, rows))
    return max(widths, key=lambda width: widths[width])


def _split_rows(path: Path, format: str, context: ReadContext) -> Iterator[tuple[int, list[str]]]:
    """(line number, cells) of every row that is not blank; invalid rows are reported and left out."""
    options, problems = context.options, context.problems
    delimiter = options.delimiter or ("\t" if format == "tsv" else "")  # "": detect it in the first line
    quoting = options.quote if options.quote is not None else format == "csv"
    if len(delimiter) > 1 or delimiter in ('"', "\r", "\n"):
        raise UsageError(f"the delimiter must be one character, not a quote or a line end; got {delimiter!r}")
    lines = _LineBuffer(read_lines(path, context, report_crlf=False))  # RFC 4180 ends lines with CR LF
    if not delimiter:
        delimiter = _find_delimiter(path, lines, quoting, problems)
    num_doubled_quotes = 0
    for number, line in lines:
        if line is None:  # reported by `read_lines`
            problems.num_seen += 1
            continue
        if not line:
            problems.note("blank line", FileLocation(str(path), number), "blank lines are left out")
        elif '"' not in line:
            yield number, line.split(delimiter)
        elif quoting:
            row = _parse_quoted_row(line, FileLocation(str(path), number), delimiter, lines, context)
            if row is not None:
                yield number, row
        else:
            num_doubled_quotes += '""' in line
            yield number, line.split(delimiter)
    if num_doubled_quotes:
        reason = (
            'rows contain doubled quotes ("") but are read without quoting; if they are quoted, read the file as '
            'format = "csv", which accepts tabs too'
        )
        problems.note("quotes in TSV", FileLocation(str(path)), reason, num_doubled_quotes)


def _find_delimiter(path: Path, lines: "_LineBuffer", quoting: bool, problems: Problems) -> str:
    """The delimiter of the first line of a CSV, or of most lines below it, because the first line may be a title."""
    first = list(islice(lines, MAX_TITLE_LINES))
    lines.push_back(first)
    texts = [(number, QUOTED_FIELD.sub("", line) if quoting else line) for number, line in first if line]
    for position, (number, text) in enumerate(texts):
        delimiter = _detect_delimiter(path, text)
        num_same = sum(delimiter in other for _, other in texts)
        if delimiter in text and (position == 0 or 2 * num_same > max(2, len(texts))):
            if delimiter != ",":
                reason = f"the file is read as separated by {DELIMITER_NAMES[delimiter]}, not commas"
                problems.note("delimiter", FileLocation(str(path), number), reason)
            return delimiter
    return ","


def _detect_delimiter(path: Path, line: str) -> str:
    """The delimiter of a line of CSV, outside of quoted fields: a comma, or the most frequent other delimiter.

    >>> [_detect_delimiter(Path("a.csv"), line) for line in ("a;b,c", "a;b", "a|b|c;d", "text")]
    [',', ';', '|', ',']
    """
    if FORMAT_BY_EXTENSION.get(format_extension(path)) == "tsv" and "\t" in line:
        return "\t"  # a TSV file that is read as CSV because it has quotes
    most_frequent = max(DELIMITER_NAMES, key=line.count)
    return most_frequent if most_frequent in line and "," not in line else ","


def _parse_quoted_row(
    line: str, location: FileLocation, delimiter: str, lines: "_LineBuffer", context: ReadContext
) -> list[str] | None:
    """A row with quotes, which may span several lines; None once it has been reported as invalid."""
    more_lines: list[NumberedLine] = []
    size = 0
    problems = context.problems
    max_bytes = context.options.limits.max_line_bytes

    def feed() -> Iterator[str]:
        nonlocal size
        yield line + "\n"
        for number, text in lines:
            more_lines.append((number, text))
            size += len(text or "")
            if len(more_lines) > MAX_ROW_LINES or size > max_bytes:
                return
            yield (text or "") + "\n"

    csv.field_size_limit(max(csv.field_size_limit(), max_bytes))
    try:
        row = next(csv.reader(feed(), delimiter=delimiter, strict=True))
    except csv.Error as error:
        lines.push_back(more_lines)
        problems.num_seen += 1
        reason = "a quote that opens here is not closed" if "unexpected end" in str(error) else str(error)
        if "new-line" in reason:
            reason = "a carriage return outside quotes"
        problems.skip("bad quoting", location, reason)
        return None
    num_unusable = sum(text is None for _, text in more_lines)
    if num_unusable:
        problems.num_seen += 1
        problems.num_invalid -= num_unusable - 1  # `read_lines` has counted every line, but they are one row
        return None
    return row


class _LineBuffer:
    """The lines of a file; lines can be pushed back to be read again."""

    def __init__(self, lines: Iterator[NumberedLine]):
        self._lines = lines
        self._pushed_back: deque[NumberedLine] = deque()

    def __iter__(self) -> "_LineBuffer":
        return self

    def __next__(self) -> NumberedLine:
        return self._pushed_back.popleft() if self._pushed_back else next(self._lines)

    def push_back(self, lines: list[NumberedLine]) -> None:
        self._pushed_back.extendleft(reversed(lines))


def _unique_names(header: list[str]) -> list[str]:
    """Column names from a header row. An empty name becomes the number of the column; a repeated name gets a number
    appended.

    >>> _unique_names(["", "text", "text"])
    ['0', 'text', 'text_2']
    """
    names: dict[str, None] = {}
    copies: Counter[str] = Counter()
    for index, cell in enumerate(header):
        name = unique = cell.strip() or str(index)
        while unique in names:
            copies[name] += 1
            unique = f"{name}_{copies[name] + 1}"
        names[unique] = None
    return list(names)
