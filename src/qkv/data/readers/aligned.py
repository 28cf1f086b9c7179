"""Files that go in step: line n of each belongs together (`train.en` and `train.fr`)."""

from collections.abc import Iterator
from itertools import zip_longest
from typing import Any

from qkv.data.readers.columns import column_indices
from qkv.data.readers.find_files import FileGroup
from qkv.data.readers.options import ReadContext
from qkv.data.records import FileLocation, Record
from qkv.errors import QkvError


def read_aligned(group: FileGroup, context: ReadContext) -> Iterator[Record]:
    """One record a line, with a field for each file; `where` names the first file.

    A pair with a bad or blank side is left out on both. Files of different lengths are always an error, whatever
    share of bad records is accepted: nobody can tell where they went out of step.
    """
    file, problems = str(group.paths[0]), context.problems
    chosen = column_indices(context.options.columns, group.fields, " + ".join(map(str, group.paths)))
    ended = (0, "")  # what a file that has no more lines gives
    number = 0
    sources = [context.lines(path) for path in group.paths]
    for number, together in enumerate(zip_longest(*sources, fillvalue=ended), start=1):
        if ended in together:
            raise _line_count_error(group, together, number, sources)
        problems.num_seen += 1
        texts = [line for _, line in together]
        if None in texts:
            continue  # the line reader has reported it
        blank = [place for place, line in enumerate(texts) if not line or line.isspace()]
        if not blank:
            yield Record({field: texts[place] for field, place in chosen}, FileLocation(file, number))
        elif len(blank) == len(texts):
            problems.num_seen -= 1
            problems.note("blank line", FileLocation(file, number), "blank on every side: left out")
        else:
            where = FileLocation(str(group.paths[blank[0]]), number)
            problems.skip("one side is blank", where, "a pair with one side blank is left out on both")


def _line_count_error(
    group: FileGroup, together: tuple[tuple[int, str | None], ...], number: int, sources: list[Iterator[Any]]
) -> QkvError:
    """Count the rest of every file, for an error that names all the counts."""
    told = []
    for path, (line, _), source in zip(group.paths, together, sources, strict=True):
        count = number + sum(1 for _ in source) if line else number - 1
        told.append(f"{path} has {count:,}")
    return QkvError(
        "aligned files must have the same number of lines, but " + ", ".join(told) + ". "
        "Every pair after the first missing line would be wrong; find it, or join the files again from their source."
    )
