"""Plain text: a record for each line, paragraph or document, in one field called `text`."""

from collections.abc import Iterator
from pathlib import Path

from qkv.data.readers.columns import places
from qkv.data.readers.find import Part
from qkv.data.readers.reading import Reading
from qkv.data.records import Record, Where
from qkv.errors import UsageError


def read_text(part: Part, reading: Reading) -> Iterator[Record]:
    """Records of one text file; `options.unit` says what one is: a line, a paragraph or the document."""
    path = part.paths[0]
    chosen = places(reading.options.columns, ["text"], str(path))
    if len(chosen) != 1:
        raise UsageError(f"{path} is plain text and has one column, text; {len(chosen)} were asked for")
    field = chosen[0][0]
    match reading.options.unit:
        case "line":
            yield from _lines(path, field, reading)
        case "paragraph" | "document" as unit:
            yield from _gathered(path, field, reading, paragraphs=unit == "paragraph")
        case other:
            raise UsageError(f"unknown unit {other!r}; known: line, paragraph, document")


def _lines(path: Path, field: str, reading: Reading) -> Iterator[Record]:
    """Lines without their ends; blank ones are counted and left out."""
    file, problems = str(path), reading.problems
    blank = first_blank = 0
    for number, line in reading.lines(path):
        if line is None:
            problems.seen += 1
        elif line and not line.isspace():
            problems.seen += 1
            yield Record({field: line}, Where(file, number))
        else:
            blank += 1
            first_blank = first_blank or number
    if blank:
        problems.note("blank line", Where(file, first_blank), "blank lines are left out", blank)


def _gathered(path: Path, field: str, reading: Reading, paragraphs: bool) -> Iterator[Record]:
    """Lines gathered until a blank one (paragraphs) or the end of the file (documents).

    A long one is handed on in pieces of about `limits.document_bytes`, cut after a line end, so that a file of any
    size needs little memory; the pieces, laid end to end, are the text
    without its last line end. Lines are what is counted here: a bad one is
    dropped from its document and does not spoil it.
    """
    file, problems = str(path), reading.problems
    enough = reading.options.limits.document_bytes
    held: list[str] = []
    start = size = pieces = 0
    for number, line in reading.lines(path):
        problems.seen += 1
        if line is None:
            continue
        if paragraphs and (not line or line.isspace()):
            if held:
                yield Record({field: "\n".join(held)}, Where(file, start))
            held, size = [], 0
            continue
        if not held:
            start = number
        held.append(line)
        size += len(line) + 1
        if size >= enough:
            yield Record({field: "\n".join([*held, ""])}, Where(file, start))
            held, size, pieces = [], 0, pieces + 1
    if any(held):
        yield Record({field: "\n".join(held)}, Where(file, start))
        pieces += bool(pieces)
    if pieces:
        problems.note("long document", Where(file), f"handed on in pieces of about {enough:,} bytes", pieces)
