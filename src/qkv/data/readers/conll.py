"""CoNLL columns: a token a line, its columns beside it, a blank line after each sentence.

One record a sentence; each field is a list with one text a token. Columns are chosen by number (negative ones from
the right) and, in CoNLL-U, by name. Without a choice: `tokens` is the first column and `tags` the last; in CoNLL-U
the forms and their `upos`.
"""

from collections.abc import Iterator

from qkv.data.readers.columns import column_indices
from qkv.data.readers.find_files import FileGroup
from qkv.data.readers.options import ReadContext
from qkv.data.records import FileLocation, Record

CONLLU_COLUMNS = ["id", "form", "lemma", "upos", "xpos", "feats", "head", "deprel", "deps", "misc"]
DOCUMENT_MARKER = "-DOCSTART-"


def read_conll(group: FileGroup, context: ReadContext) -> Iterator[Record]:
    """Sentences of a CoNLL file as records; `where` is the line of the first token."""
    universal = group.format == "conllu"
    comments = context.options.comments if context.options.comments is not None else universal
    file, problems = str(group.paths[0]), context.problems
    usual: dict[str, str | int] = {"tokens": "form", "tags": "upos"} if universal else {"tokens": 0, "tags": -1}
    chosen: list[tuple[str, int]] = []
    width = len(CONLLU_COLUMNS) if universal else 0
    sentence = _Sentence()

    def finished() -> Iterator[Record]:
        nonlocal sentence
        if sentence.rows or sentence.incomplete:
            problems.num_seen += 1
        if sentence.reason:
            problems.skip("wrong number of columns", FileLocation(file, sentence.bad_line), sentence.reason)
        elif sentence.rows and not sentence.incomplete:
            columns = list(zip(*sentence.rows, strict=True))
            yield Record({field: list(columns[place]) for field, place in chosen}, FileLocation(file, sentence.line))
        sentence = _Sentence()

    for number, line in context.lines(group.paths[0]):
        if line is None:  # reported by the line reader; the sentence cannot be used without it
            sentence.incomplete = True
        elif not line or line.isspace():
            yield from finished()
        elif not (comments and line.startswith("#")):
            cells = line.split("\t") if "\t" in line else [cell for cell in line.split(" ") if cell]
            if cells[0] == DOCUMENT_MARKER:
                yield from finished()
                continue
            if universal and not cells[0].isdecimal() and len(cells) == width:
                continue  # 3-4 is a contraction above its words, 5.1 an empty node: neither is a token
            if not chosen:
                width = width or len(cells)
                names = CONLLU_COLUMNS if universal else [str(place) for place in range(width)]
                chosen = column_indices(context.options.columns or usual, names, file)
            sentence.add(number, cells, width)
    yield from finished()


class _Sentence:
    """The token lines since the last blank line."""

    def __init__(self) -> None:
        self.rows: list[list[str]] = []
        self.line = 0
        self.incomplete = False  # a line of it could not be read
        self.reason, self.bad_line = "", 0

    def add(self, number: int, cells: list[str], width: int) -> None:
        self.line = self.line or number
        self.rows.append(cells)
        if len(cells) != width and not self.reason:
            hint = "; if it is a comment, give comments = true" if cells[0].startswith("#") else ""
            self.reason = f"{len(cells)} columns where the first token has {width}{hint}"
            self.bad_line = number
