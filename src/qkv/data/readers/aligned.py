"""Files that go in step: line n of each belongs together (`train.en` and `train.fr`)."""

from collections.abc import Iterator
from itertools import zip_longest
from typing import Any

from qkv.data.readers.columns import places
from qkv.data.readers.find import Part
from qkv.data.readers.reading import Reading
from qkv.data.records import Record, Where
from qkv.errors import QkvError


def read_aligned(part: Part, reading: Reading) -> Iterator[Record]:
    """One record a line, with a field for each file; `where` names the first file.

    A pair with a bad or blank side is left out on both. Files of different lengths are always an error, whatever
    share of bad records is accepted: nobody can tell where they went out of step.
    """
    file, problems = str(part.paths[0]), reading.problems
    chosen = places(reading.options.columns, part.names, " + ".join(map(str, part.paths)))
    ended = (0, "")  # what a file that has no more lines gives
    number = 0
    sources = [reading.lines(path) for path in part.paths]
    for number, together in enumerate(zip_longest(*sources, fillvalue=ended), start=1):
        if ended in together:
            raise _uneven(part, together, number, sources)
        problems.seen += 1
        texts = [line for _, line in together]
        if None in texts:
            continue  # the line reader has reported it
        blank = [place for place, line in enumerate(texts) if not line or line.isspace()]
        if not blank:
            yield Record({field: texts[place] for field, place in chosen}, Where(file, number))
        elif len(blank) == len(texts):
            problems.seen -= 1
            problems.note("blank line", Where(file, number), "blank on every side: left out")
        else:
            where = Where(str(part.paths[blank[0]]), number)
            problems.skip("one side is blank", where, "a pair with one side blank is left out on both")


def _uneven(
    part: Part, together: tuple[tuple[int, str | None], ...], number: int, sources: list[Iterator[Any]]
) -> QkvError:
    """Count the rest of every file, for an error that names all the counts."""
    told = []
    for path, (line, _), source in zip(part.paths, together, sources, strict=True):
        count = number + sum(1 for _ in source) if line else number - 1
        told.append(f"{path} has {count:,}")
    return QkvError(
        "aligned files must have the same number of lines, but " + ", ".join(told) + ". "
        "Every pair after the first missing line would be wrong; find it, or join the files again from their source."
    )
