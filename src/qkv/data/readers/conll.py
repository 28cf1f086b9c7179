"""CoNLL columns: one token a line with its columns, and a blank line after each sentence.

One record a sentence; each field is a list with one text for each token. Columns are chosen by number (negative
numbers count from the right) and, in CoNLL-U, by name. By default `tokens` is the first column and `tags` the last;
in CoNLL-U the forms and their `upos`.
"""

from collections import Counter
from collections.abc import Iterator
from itertools import chain, islice

from qkv.data.readers.columns import column_indices
from qkv.data.readers.find_files import FileGroup
from qkv.data.readers.lines import read_lines
from qkv.data.readers.options import ReadContext
from qkv.data.records import FileLocation, Record

CONLLU_COLUMNS = ["id", "form", "lemma", "upos", "xpos", "feats", "head", "deprel", "deps", "misc"]
DOCUMENT_MARKER = "-DOCSTART-"
MAX_LINES_COMPARED = 1000  # lines that decide how many columns there are


def read_conll(group: FileGroup, context: ReadContext) -> Iterator[Record]:
    """The sentences of a CoNLL file as records; the location is the line of the first token."""
    is_conllu = group.format == "conllu"
    comments = context.options.comments if context.options.comments is not None else is_conllu
    file, problems = str(group.paths[0]), context.problems
    default: dict[str, str | int] = {"tokens": "form", "tags": "upos"} if is_conllu else {"tokens": 0, "tags": -1}
    columns: list[tuple[str, int]] = []
    lines = read_lines(group.paths[0], context)
    first_lines = list(islice(lines, MAX_LINES_COMPARED))
    widths = Counter(len(split_cells(line)) for _, line in first_lines if line and not line.startswith("#"))
    width = len(CONLLU_COLUMNS) if is_conllu else max(widths, key=lambda number: widths[number], default=0)
    sentence = _Sentence()

    def finish_sentence() -> Iterator[Record]:
        nonlocal sentence
        if sentence.rows or sentence.incomplete:
            problems.num_seen += 1
        if sentence.reason:
            problems.skip("wrong number of columns", FileLocation(file, sentence.bad_line), sentence.reason)
        elif sentence.rows and not sentence.incomplete:
            cells = list(zip(*sentence.rows, strict=True))
            yield Record({field: list(cells[index]) for field, index in columns}, FileLocation(file, sentence.line))
        sentence = _Sentence()

    for number, line in chain(first_lines, lines):
        if line is None:  # reported by the line reader; the sentence cannot be used without it
            sentence.incomplete = True
        elif not line or line.isspace():
            yield from finish_sentence()
        elif not (comments and line.startswith("#")):
            cells = split_cells(line)
            if cells[0] == DOCUMENT_MARKER:
                yield from finish_sentence()
                continue
            if is_conllu and not cells[0].isdecimal() and len(cells) == width:
                continue  # "3-4" is a multiword token and "5.1" an empty node; skip both
            if not columns:
                names = CONLLU_COLUMNS if is_conllu else [str(index) for index in range(width)]
                columns = column_indices(context.options.columns or default, names, file)
            sentence.add(number, cells, width)
    yield from finish_sentence()


def split_cells(line: str) -> list[str]:
    """The columns of a line, which tabs or else spaces separate.

    >>> split_cells("New York\\tLOC"), split_cells("York  LOC")
    (['New York', 'LOC'], ['York', 'LOC'])
    """
    return line.split("\t") if "\t" in line else [cell for cell in line.split(" ") if cell]


class _Sentence:
    """The token lines since the last blank line."""

    def __init__(self) -> None:
        self.rows: list[list[str]] = []
        self.line = 0
        self.incomplete = False  # one of its lines could not be read
        self.reason, self.bad_line = "", 0

    def add(self, number: int, cells: list[str], width: int) -> None:
        self.line = self.line or number
        self.rows.append(cells)
        if len(cells) != width and not self.reason:
            hint = "; if it is a comment, set comments = true" if cells[0].startswith("#") else ""
            self.reason = f"{len(cells)} columns, but most lines have {width}{hint}"
            self.bad_line = number
