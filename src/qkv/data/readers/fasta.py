"""Files of proteins, with a header line `>…` before each: FASTA, and three lines with a label for each residue.

    >seq1 a sensor of light         >seq1
    MKTAYIAKQRQISFVKSHFSRQ          MKTAYIAKQRQISFVKSHFSRQ
    LEERLGLIEVQ                     CCHHHHHHHHHCCCEEEEECCC

The sequence of a FASTA record may have any number of lines. A file of three lines for each protein may lack the `>`.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from qkv.data.problems import InvalidRecord
from qkv.data.proteins import load_sequence
from qkv.data.readers.columns import column_indices
from qkv.data.readers.find_files import FileGroup
from qkv.data.readers.lines import read_lines
from qkv.data.readers.options import ReadContext
from qkv.data.records import FileLocation, Record


@dataclass(frozen=True)
class Entry:
    """A header, and the lines below it; a line that cannot be read is None."""

    location: FileLocation
    header: str
    lines: list[str | None]


def read_fasta(group: FileGroup, context: ReadContext) -> Iterator[Record]:
    """The proteins of a FASTA file, with the fields `id` (the header) and `sequence`."""
    path, problems = group.paths[0], context.problems
    columns = column_indices(context.options.columns, ["id", "sequence"], str(path))
    for entry in read_entries(path, context):
        lines = [line for line in entry.lines if line is not None]
        if len(lines) < len(entry.lines):
            continue  # reported by `read_entries` or the line reader
        try:
            values = (entry.header, load_sequence("".join(lines), problems, entry.location))
        except InvalidRecord as invalid:
            problems.leave_out(invalid, entry.location)
            continue
        yield Record({field: values[index] for field, index in columns}, entry.location)


def read_three_lines(group: FileGroup, context: ReadContext) -> Iterator[Record]:
    """The proteins of a file with a header, a sequence and a line of labels: the fields `id`, `tokens` and `tags`."""
    path, problems = group.paths[0], context.problems
    columns = column_indices(context.options.columns, ["id", "tokens", "tags"], str(path))
    for entry in read_entries(path, context, num_lines=2):
        lines = [line for line in entry.lines if line is not None]
        half = len(lines) // 2  # a sequence may have several lines, and its labels then have as many
        sequence, labels = "".join(lines[:half]), "".join(lines[half:])
        if len(lines) < len(entry.lines):
            continue
        if len(sequence) != len(labels) or not sequence:
            reason = f"{len(sequence)} residues, but {len(labels)} labels"
            problems.skip("uneven lengths", entry.location, reason)
            continue
        values = (entry.header, list(sequence), list(labels))
        yield Record({field: values[index] for field, index in columns}, entry.location)


def read_entries(path: Path, context: ReadContext, num_lines: int = 0) -> Iterator[Entry]:
    """The entries of a file. Blank lines and comments (`;`) are left out.

    Headers begin with `>`. If the first line does not, and `num_lines` is set, each has that number of lines below it.
    """
    entry: Entry | None = None
    is_marked = True
    for number, line in read_lines(path, context):
        if line is not None and (not line.strip() or line.startswith(";")):
            continue
        location, is_mark = FileLocation(str(path), number), line is not None and line.startswith(">")
        if entry is None:
            is_marked = is_mark or not num_lines
        if is_mark or (not is_marked and (entry is None or len(entry.lines) == num_lines)):
            if entry is not None:
                yield entry
            context.problems.num_seen += 1
            entry = Entry(location, (line or "").removeprefix(">").strip(), [])
        elif entry is not None:
            entry.lines.append(None if line is None else line.strip())
        else:
            context.problems.num_seen += 1
            reason = "the first line of a FASTA file must be a header, which begins with >"
            context.problems.skip("no header", location, reason)
            entry = Entry(location, "", [None])
    if entry is not None:
        yield entry
