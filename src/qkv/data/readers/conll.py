"""CoNLL columns: a token a line, its columns beside it, a blank line after each sentence.

One record a sentence; each field is a list with one text a token. Columns are chosen by number (negative ones from
the right) and, in CoNLL-U, by name. Without a choice: `tokens` is the first column and `tags` the last; in CoNLL-U
the forms and their `upos`.
"""

from collections.abc import Iterator

from qkv.data.readers.columns import places
from qkv.data.readers.find import Part
from qkv.data.readers.reading import Reading
from qkv.data.records import Record, Where

CONLLU = ["id", "form", "lemma", "upos", "xpos", "feats", "head", "deprel", "deps", "misc"]
DOCUMENT = "-DOCSTART-"


def read_conll(part: Part, reading: Reading) -> Iterator[Record]:
    """Sentences of a CoNLL file as records; `where` is the line of the first token."""
    universal = part.format == "conllu"
    comments = reading.options.comments if reading.options.comments is not None else universal
    file, problems = str(part.paths[0]), reading.problems
    usual: dict[str, str | int] = {"tokens": "form", "tags": "upos"} if universal else {"tokens": 0, "tags": -1}
    chosen: list[tuple[str, int]] = []
    width = len(CONLLU) if universal else 0
    sentence = _Sentence()

    def finished() -> Iterator[Record]:
        nonlocal sentence
        if sentence.rows or sentence.lost:
            problems.seen += 1
        if sentence.reason:
            problems.skip("wrong number of columns", Where(file, sentence.bad_line), sentence.reason)
        elif sentence.rows and not sentence.lost:
            columns = list(zip(*sentence.rows, strict=True))
            yield Record({field: list(columns[place]) for field, place in chosen}, Where(file, sentence.line))
        sentence = _Sentence()

    for number, line in reading.lines(part.paths[0]):
        if line is None:  # reported by the line reader; the sentence cannot be used without it
            sentence.lost = True
        elif not line or line.isspace():
            yield from finished()
        elif not (comments and line.startswith("#")):
            cells = line.split("\t") if "\t" in line else [cell for cell in line.split(" ") if cell]
            if cells[0] == DOCUMENT:
                yield from finished()
                continue
            if universal and not cells[0].isdecimal() and len(cells) == width:
                continue  # 3-4 is a contraction above its words, 5.1 an empty node: neither is a token
            if not chosen:
                width = width or len(cells)
                names = CONLLU if universal else [str(place) for place in range(width)]
                chosen = places(reading.options.columns or usual, names, file)
            sentence.add(number, cells, width)
    yield from finished()


class _Sentence:
    """The token lines since the last blank line."""

    def __init__(self) -> None:
        self.rows: list[list[str]] = []
        self.line = 0
        self.lost = False  # a line of it could not be read
        self.reason, self.bad_line = "", 0

    def add(self, number: int, cells: list[str], width: int) -> None:
        self.line = self.line or number
        self.rows.append(cells)
        if len(cells) != width and not self.reason:
            hint = "; if it is a comment, give comments = true" if cells[0].startswith("#") else ""
            self.reason = f"{len(cells)} columns where the first token has {width}{hint}"
            self.bad_line = number
