"""Plain text: a record for each line, paragraph or document, in one field named `text`."""

from collections.abc import Iterator
from pathlib import Path

from qkv.data.problems import Problems
from qkv.data.readers.columns import column_indices
from qkv.data.readers.find_files import FileGroup
from qkv.data.readers.lines import read_line_blocks, read_lines
from qkv.data.readers.options import ReadContext
from qkv.data.records import FileLocation, Record
from qkv.errors import UsageError


def read_text(group: FileGroup, context: ReadContext) -> Iterator[Record]:
    """The records of one text file; `options.unit` is the unit of a record: a line, a paragraph or the document."""
    path = group.paths[0]
    columns = column_indices(context.options.columns, ["text"], str(path))
    if len(columns) != 1:
        raise UsageError(f"{path} is plain text with one column, text, but {len(columns)} columns were chosen")
    field = columns[0][0]
    match context.options.unit:
        case "line":
            yield from _line_records(path, field, context)
        case "paragraph":
            yield from _paragraph_records(path, field, context)
        case "document":
            yield from _document_records(path, field, context)
        case other:
            raise UsageError(f"unknown unit {other!r}; known: line, paragraph, document")


def _line_records(path: Path, field: str, context: ReadContext) -> Iterator[Record]:
    """Lines without their line ends; blank lines are counted and left out."""
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


def _paragraph_records(path: Path, field: str, context: ReadContext) -> Iterator[Record]:
    """Paragraphs: the lines up to a blank line, joined. A paragraph is split like a long document, and problems are
    counted by line.
    """
    file, problems = str(path), context.problems
    max_size = context.options.limits.document_chunk_bytes
    held: list[str] = []
    start = size = num_chunks = 0
    for number, line in read_lines(path, context):
        problems.num_seen += 1
        if line and not line.isspace():
            start = start if held else number
            held.append(line)
            size += len(line) + 1
            if size >= max_size:
                yield Record({field: "\n".join([*held, ""])}, FileLocation(file, start))
                held, size, num_chunks = [], 0, num_chunks + 1
        elif line is not None:
            if held:
                yield Record({field: "\n".join(held)}, FileLocation(file, start))
            held, size = [], 0
    if held:
        yield Record({field: "\n".join(held)}, FileLocation(file, start))
    _report_chunks(file, num_chunks, max_size, problems)


def _document_records(path: Path, field: str, context: ReadContext) -> Iterator[Record]:
    """The whole file. A long document becomes several records of about `limits.document_chunk_bytes`, cut at line ends.

    So a file of any size needs little memory. Concatenated, the records are the text without its last line end. Blocks
    of lines are joined without looking at each line, which is several times faster. Problems are counted by line: an
    unusable line is dropped, and the rest of the document is kept.
    """
    file, problems = str(path), context.problems
    max_size = context.options.limits.document_chunk_bytes
    held: list[str] = []
    start = size = num_chunks = 0
    for number, block in read_line_blocks(path, context):
        if isinstance(block, str):
            text = block
            problems.num_seen += text.count("\n") + 1
        else:
            problems.num_seen += len(block)
            usable = [index for index, line in enumerate(block) if line is not None]
            if not usable:
                continue
            number += usable[0]
            text = "\n".join(line for line in block if line is not None)
        while True:
            start = start if held else number
            # The first line end at which the record has `max_size` characters.
            end = text.find("\n", max(0, max_size - size - 1))
            if end < 0 and size + len(text) + 1 < max_size:
                held.append(text)
                size += len(text) + 1
                break
            end = len(text) if end < 0 else end
            yield Record({field: "\n".join([*held, text[:end], ""])}, FileLocation(file, start))
            held, size, num_chunks = [], 0, num_chunks + 1
            if end == len(text):
                break
            number += text.count("\n", 0, end) + 1
            text = text[end + 1 :]
    if any(text.strip("\n") for text in held):
        yield Record({field: "\n".join(held)}, FileLocation(file, start))
        num_chunks += bool(num_chunks)
    _report_chunks(file, num_chunks, max_size, problems)


def _report_chunks(file: str, num_chunks: int, max_size: int, problems: Problems) -> None:
    if num_chunks:
        reason = f"split into records of about {max_size:,} bytes"
        problems.note("long document", FileLocation(file), reason, num_chunks)
