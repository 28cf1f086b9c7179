"""Line-aligned files: line n of each belongs together (`train.en` and `train.fr`)."""

from collections.abc import Iterator
from itertools import zip_longest
from typing import Any

from qkv.data.readers.columns import column_indices
from qkv.data.readers.find_files import FileGroup
from qkv.data.readers.lines import read_lines
from qkv.data.readers.options import ReadContext
from qkv.data.records import FileLocation, Record
from qkv.errors import QkvError


def read_aligned(group: FileGroup, context: ReadContext) -> Iterator[Record]:
    """One record per line, with a field for each file; its location is the line in the first file.

    If one side of a pair is invalid or blank, the pair is left out. Files of different lengths are always an error,
    whatever fraction of invalid records is accepted: nobody can tell where the alignment was lost.
    """
    file, problems = str(group.paths[0]), context.problems
    columns = column_indices(context.options.columns, group.fields, " + ".join(map(str, group.paths)))
    at_end = (0, "")  # stands for a file that has no more lines
    readers = [read_lines(path, context) for path in group.paths]
    for number, lines in enumerate(zip_longest(*readers, fillvalue=at_end), start=1):
        if at_end in lines:
            raise _line_count_error(group, lines, number, readers)
        problems.num_seen += 1
        texts = [line for _, line in lines]
        if None in texts:
            continue  # the line reader has reported it
        blank = [index for index, line in enumerate(texts) if not line or line.isspace()]
        if not blank:
            yield Record({field: texts[index] for field, index in columns}, FileLocation(file, number))
        elif len(blank) == len(texts):
            problems.num_seen -= 1
            problems.note("blank line", FileLocation(file, number), "blank on every side: left out")
        else:
            location = FileLocation(str(group.paths[blank[0]]), number)
            problems.skip("one side is blank", location, "the pair is left out because this side is blank")


def _line_count_error(
    group: FileGroup, lines: tuple[tuple[int, str | None], ...], number: int, readers: list[Iterator[Any]]
) -> QkvError:
    """Count the rest of every file, for an error with all the counts."""
    counts = []
    for path, (line, _), reader in zip(group.paths, lines, readers, strict=True):
        count = number + sum(1 for _ in reader) if line else number - 1
        counts.append(f"{path} has {count:,}")
    return QkvError(
        f"aligned files must have the same number of lines, but {', '.join(counts)}. Every pair after the first "
        "missing line would be wrong; find it, or create the files again from their source."
    )
