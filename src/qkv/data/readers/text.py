"""Plain text: a record for each line, paragraph or document, in one field named `text`."""

from collections.abc import Iterator
from pathlib import Path

from qkv.data.readers.columns import column_indices
from qkv.data.readers.find_files import FileGroup
from qkv.data.readers.lines import read_lines
from qkv.data.readers.options import ReadContext
from qkv.data.records import FileLocation, Record
from qkv.errors import UsageError


def read_text(group: FileGroup, context: ReadContext) -> Iterator[Record]:
    """The records of one text file; `options.unit` says what one is: a line, a paragraph or the document."""
    path = group.paths[0]
    columns = column_indices(context.options.columns, ["text"], str(path))
    if len(columns) != 1:
        raise UsageError(f"{path} is plain text with one column, text, but {len(columns)} columns were chosen")
    field = columns[0][0]
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
    num_blank = first_blank = 0
    for number, line in read_lines(path, context):
        if line is None:
            problems.num_seen += 1
        elif line and not line.isspace():
            problems.num_seen += 1
            yield Record({field: line}, FileLocation(file, number))
        else:
            num_blank += 1
            first_blank = first_blank or number
    if num_blank:
        problems.note("blank line", FileLocation(file, first_blank), "blank lines are left out", num_blank)


def _joined_records(path: Path, field: str, context: ReadContext, paragraphs: bool) -> Iterator[Record]:
    """Lines joined up to a blank one (paragraphs) or to the end of the file (documents).

    A long text becomes several records of about `limits.document_chunk_bytes`, cut at line ends, so that a file of
    any size needs little memory; concatenated they are the text without its last line end. Problems are counted by
    line here: an unusable line is dropped from its document, and the rest of the document is kept.
    """
    file, problems = str(path), context.problems
    max_size = context.options.limits.document_chunk_bytes
    held: list[str] = []
    start = size = num_chunks = 0
    for number, line in read_lines(path, context):
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
        if size >= max_size:
            yield Record({field: "\n".join([*held, ""])}, FileLocation(file, start))
            held, size, num_chunks = [], 0, num_chunks + 1
    if any(held):
        yield Record({field: "\n".join(held)}, FileLocation(file, start))
        num_chunks += bool(num_chunks)
    if num_chunks:
        reason = f"split into records of about {max_size:,} bytes"
        problems.note("long document", FileLocation(file), reason, num_chunks)
