"""The base of the results of tasks. Each prints as text, shows as HTML in a notebook, and converts to JSON values.

A result describes itself once: `summary` is one line, as `qkv run` prints it; `rows` is a table of details; and
`marked_text` is a text with labelled spans. `str`, HTML and `repr` show these three. Its fields are the JSON values and
the JSON schema, except fields with the metadata `qkv.values.HIDDEN`.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from html import escape
from typing import Any

from qkv.values import to_json

MAX_ROWS = 10
"""A printed table has at most this many rows."""
MAX_CELL_CHARS = 80  # of a cell of a printed table, and of a summary in `repr`
EXCERPT_CHARS = 120
"""A marked text shows this many characters before its first span and after its last."""

Span = tuple[int, int, str]  # first character, last character + 1, label
Row = tuple[str, ...]


class Result(ABC):
    """Base of all results. Its subclasses are frozen dataclasses."""

    @abstractmethod
    def summary(self) -> str:
        """The result in one line."""

    def body(self) -> str:
        """The result as text, with its line breaks."""
        return self.summary()

    def rows(self) -> list[Row]:
        """The details, one row for each."""
        return []

    def tables(self) -> list[list[Row]]:
        """The tables of details; by default, only `rows`."""
        return [self.rows()]

    def marked_text(self) -> tuple[str, Sequence[Span]] | None:
        """A text with labelled spans, which HTML shows instead of `body`."""
        return None

    def to_dict(self) -> dict[str, Any]:
        """The result as JSON values."""
        values: dict[str, Any] = to_json(self)
        return values

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {cut_text(one_line(self.body()), MAX_CELL_CHARS)}>"

    def __str__(self) -> str:
        return "\n".join([self.body(), *(line for rows in self.tables() for line in format_rows(rows))])

    def _repr_html_(self) -> str:
        marked = self.marked_text()
        body = escape(self.body()) if marked is None else mark_spans(*marked)
        tables = "".join(map(html_table, filter(None, self.tables())))
        return f'<div><p style="white-space:pre-wrap">{body}</p>{tables}</div>'


def one_line(text: str) -> str:
    """A text without line breaks and repeated spaces.

    >>> one_line("in\\n the  house")
    'in the house'
    """
    return " ".join(text.split())


def probability_rows(probabilities: dict[str, float]) -> list[Row]:
    """Names and probabilities."""
    return [(one_line(name), f"{value:.4f}") for name, value in probabilities.items()]


def format_rows(rows: Sequence[Row]) -> list[str]:
    """Rows as indented lines with aligned columns; characters of double width count as two.

    >>> format_rows([("good", "0.9312"), ("so so", "0.0688")])
    ['  good   0.9312', '  so so  0.0688']
    """
    from rich.cells import cell_len

    shown = [tuple(cut_text(cell, MAX_CELL_CHARS) for cell in row) for row in rows[:MAX_ROWS]]
    num_columns = max(map(len, shown), default=0)
    widths = [max((cell_len(row[i]) for row in shown if i < len(row)), default=0) for i in range(num_columns)]
    lines = [
        "  "
        + "  ".join(cell + " " * (width - cell_len(cell)) for cell, width in zip(row, widths, strict=False)).rstrip()
        for row in shown
    ]
    return lines + ([f"  … and {len(rows) - MAX_ROWS} more"] if len(rows) > MAX_ROWS else [])


def html_table(rows: Sequence[Row]) -> str:
    """HTML of the first rows."""
    cells = ["".join(f"<td>{escape(cell)}</td>" for cell in row) for row in rows[:MAX_ROWS]]
    return f"<table>{''.join(f'<tr>{row}</tr>' for row in cells)}</table>"


def cut_text(text: str, max_chars: int) -> str:
    """The beginning of a text that is too long.

    >>> cut_text("a long text", 7)
    'a long…'
    """
    return text if len(text) <= max_chars else text[: max_chars - 1] + "…"


def mark_spans(text: str, spans: Sequence[Span]) -> str:
    """HTML of a text whose spans, which must not overlap, are marked with their labels.

    >>> mark_spans("a <b>", [(2, 5, "tag")])
    'a <mark>&lt;b&gt; <small>tag</small></mark>'
    """
    parts, position = [], 0
    for start, end, label in sorted(spans):
        parts += [
            escape(text[position:start]),
            f"<mark>{escape(text[start:end])} <small>{escape(label)}</small></mark>",
        ]
        position = end
    return "".join(parts) + escape(text[position:])
