"""Plain text: a record for each line, paragraph or document, in one field called `text`."""

from collections.abc import Iterator
from pathlib import Path

from qkv.data.readers.columns import column_indices
from qkv.data.readers.find_files import FileGroup
from qkv.data.readers.options import ReadContext
from qkv.data.records import FileLocation, Record
from qkv.errors import UsageError


def read_text(group: FileGroup, context: ReadContext) -> Iterator[Record]:
    """Records of one text file; `options.unit` says what one is: a line, a paragraph or the document."""
    path = group.paths[0]
    chosen = column_indices(context.options.columns, ["text"], str(path))
    if len(chosen) != 1:
        raise UsageError(f"{path} is plain text and has one column, text; {len(chosen)} were asked for")
    field = chosen[0][0]
    match context.options.unit:
        case "line":
            yield from _line_records(path, field, context)
        case "paragraph" | "document" as unit:
            yield from _joined_records(path, field, context, paragraphs=unit == "paragraph")
        case other:
            raise UsageError(f"unknown unit {other!r}; known: line, paragraph, document")


def _line_records(path: Path, field: str, context: ReadContext) -> Iterator[Record]:
    """Lines without their ends; blank ones are counted and left out."""
    file, problems = str(path), context.problems
    blank = first_blank = 0
    for number, line in context.lines(path):
        if line is None:
            problems.num_seen += 1
        elif line and not line.isspace():
            problems.num_seen += 1
            yield Record({field: line}, FileLocation(file, number))
        else:
            blank += 1
            first_blank = first_blank or number
    if blank:
        problems.note("blank line", FileLocation(file, first_blank), "blank lines are left out", blank)


def _joined_records(path: Path, field: str, context: ReadContext, paragraphs: bool) -> Iterator[Record]:
    """Lines gathered until a blank one (paragraphs) or the end of the file (documents).

    A long one is handed on in pieces of about `limits.document_bytes`, cut after a line end, so that a file of any
    size needs little memory; the pieces, laid end to end, are the text
    without its last line end. Lines are what is counted here: a bad one is
    dropped from its document and does not spoil it.
    """
    file, problems = str(path), context.problems
    enough = context.options.limits.document_chunk_bytes
    held: list[str] = []
    start = size = pieces = 0
    for number, line in context.lines(path):
        problems.num_seen += 1
        if line is None:
            continue
        if paragraphs and (not line or line.isspace()):
            if held:
                yield Record({field: "\n".join(held)}, FileLocation(file, start))
            held, size = [], 0
            continue
        if not held:
            start = number
        held.append(line)
        size += len(line) + 1
        if size >= enough:
            yield Record({field: "\n".join([*held, ""])}, FileLocation(file, start))
            held, size, pieces = [], 0, pieces + 1
    if any(held):
        yield Record({field: "\n".join(held)}, FileLocation(file, start))
        pieces += bool(pieces)
    if pieces:
        problems.note("long document", FileLocation(file), f"handed on in pieces of about {enough:,} bytes", pieces)
