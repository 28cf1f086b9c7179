"""The results of tasks. Each prints as text, shows as HTML in a notebook, and converts to JSON values.

A result describes itself once: `summary` is one line, as `qkv run` prints it; `rows` is a table of details; and
`marked_text` is a text with labelled spans. `str`, HTML and `repr` are made of these three.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from html import escape
from itertools import zip_longest
from typing import Any

from qkv.decode import GenerationResult
from qkv.decode.result import FinishReason

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
        """The tables of details; by default, the only one is `rows`."""
        return [self.rows()]

    def marked_text(self) -> tuple[str, Sequence[Span]] | None:
        """A text with labelled spans, which HTML shows instead of `body`."""
        return None

    def to_dict(self) -> dict[str, Any]:
        """The result as JSON values."""
        return asdict(self)  # type: ignore[call-overload, no-any-return]

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {cut_text(one_line(self.body()), MAX_CELL_CHARS)}>"

    def __str__(self) -> str:
        return "\n".join([self.body(), *(line for rows in self.tables() for line in format_rows(rows))])

    def _repr_html_(self) -> str:
        marked = self.marked_text()
        body = escape(self.body()) if marked is None else mark_spans(*marked)
        tables = "".join(map(html_table, filter(None, self.tables())))
        return f'<div><p style="white-space:pre-wrap">{body}</p>{tables}</div>'


@dataclass(frozen=True, repr=False)
class ClassPrediction(Result):
    """The most likely class with its probability, and the classes with their probabilities, the most likely first.

    `label` is None if no class reaches the threshold: the text is out of scope. The most likely class is then
    `rejected_label`. The label of an empty text is None, too, and it has no probabilities.
    """

    label: str | None
    probability: float  # of the most likely class, even if it is below the threshold
    probabilities: dict[str, float]
    rejected_label: str | None = None  # the most likely class, if its probability is below the threshold

    def summary(self) -> str:
        """The label and its probability; for a text out of scope, the class that was rejected."""
        if self.label is None:
            if self.rejected_label is None:
                return "(none)\tempty text"
            return f"(none)\tbelow the threshold: {one_line(self.rejected_label)} {self.probability:.4f}"
        return f"{one_line(self.label)}\t{self.probability:.4f}"

    def rows(self) -> list[Row]:
        """The classes and their probabilities."""
        return probability_rows(self.probabilities)


@dataclass(frozen=True, repr=False)
class LabelsPrediction(Result):
    """All labels of a text whose probability reaches the threshold, and the labels with their probabilities."""

    labels: list[str]  # the most likely first; empty if none reaches the threshold
    probabilities: dict[str, float]  # each label is independent of the others, so they need not add up to 1

    def summary(self) -> str:
        """The labels, separated by commas."""
        return ", ".join(map(one_line, self.labels)) or "(none)"

    def rows(self) -> list[Row]:
        """The labels and their probabilities."""
        return probability_rows(self.probabilities)


@dataclass(frozen=True, repr=False)
class ScorePrediction(Result):
    """A number, predicted by a head with a single output."""

    score: float

    def summary(self) -> str:
        """The number."""
        return f"{self.score:.6g}"


@dataclass(frozen=True)
class TaggedWord:
    """A word with its tag, the probability of the tag, and the characters of the word in the text."""

    word: str
    tag: str
    probability: float
    start: int
    end: int  # one past the last character


@dataclass(frozen=True)
class TaggedEntity:
    """An entity of one or more words, the mean probability of their tags, and its characters in the text."""

    text: str
    label: str
    probability: float
    start: int
    end: int  # one past the last character


@dataclass(frozen=True, repr=False)
class TaggedText(Result):
    """The words of a text with their tags. If the tags are BIO or BIOES tags, also the entities."""

    text: str
    words: list[TaggedWord]
    entities: list[TaggedEntity]

    def summary(self) -> str:
        """The words, each with its tag after a slash."""
        return " ".join(f"{tagged.word}/{tagged.tag}" for tagged in self.words)

    def rows(self) -> list[Row]:
        """The entities."""
        return [
            (one.label, one_line(one.text), f"{one.start}–{one.end}", f"{one.probability:.4f}") for one in self.entities
        ]

    def marked_text(self) -> tuple[str, Sequence[Span]]:
        """The text with its entities, or with the tag of each word."""
        if self.entities or any(word.tag == "O" for word in self.words):
            return self.text, [(one.start, one.end, one.label) for one in self.entities]
        return self.text, [(one.start, one.end, one.tag) for one in self.words]


@dataclass(frozen=True, repr=False)
class Answer(Result):
    """A part of a passage that answers a question, with its characters in the passage.

    The probability is that of this span among all spans and "no answer". The score is the sum of the span's logits
    minus that of "no answer".
    """

    text: str  # empty if there is no answer
    start: int  # −1 if there is no answer
    end: int  # one past the last character
    score: float
    probability: float = 1.0
    alternatives: list["Answer"] = field(default_factory=list)  # other answers, the most likely first
    context: str = field(default="", compare=False)  # the passage; not part of JSON

    def summary(self) -> str:
        """The text of the answer; empty if there is none."""
        return one_line(self.text)

    def body(self) -> str:
        """The text of the answer."""
        return self.summary() or "(no answer)"

    def rows(self) -> list[Row]:
        """The answer and the other answers."""
        shown = [self, *self.alternatives]
        return [(one.body(), f"{one.start}–{one.end}" if one.text else "", f"{one.probability:.4f}") for one in shown]

    def marked_text(self) -> tuple[str, Sequence[Span]] | None:
        """The passage around the answer."""
        if not self.text:
            return None
        first, last = max(0, self.start - EXCERPT_CHARS), self.end + EXCERPT_CHARS
        return self.context[first:last], [(self.start - first, self.end - first, f"{self.probability:.2f}")]

    def to_dict(self) -> dict[str, Any]:
        """The result as JSON values, without the passage."""
        values = {name: getattr(self, name) for name in ("text", "start", "end", "score", "probability")}
        return {**values, "alternatives": [other.to_dict() for other in self.alternatives]}


@dataclass(frozen=True, repr=False)
class FilledText(Result):
    """A text with its masks filled in, and for each mask the most likely words with their probabilities."""

    text: str
    candidates: list[dict[str, float]]

    def summary(self) -> str:
        """The text in one line."""
        return " ".join(self.text.splitlines())

    def rows(self) -> list[Row]:
        """A row for each rank, with two columns for each mask."""
        columns = [[(one_line(word) or repr(word), f"{p:.4f}") for word, p in one.items()] for one in self.candidates]
        return [sum(cells, ()) for cells in zip_longest(*columns, fillvalue=("", ""))]


@dataclass(frozen=True)
class WordLink:
    """A word of the generated text, the source word that it is aligned with, and their characters."""

    source: str
    target: str
    source_start: int
    source_end: int
    target_start: int
    target_end: int
    weight: float  # of all that the target word depends on, the fraction due to this source word


@dataclass(frozen=True, repr=False)
class GeneratedText(Result):
    """A text that the model generated: a translation, a summary, a continuation.

    A long source is read in parts, such as sentences; then `parts` has a result for each.
    """

    source: str
    text: str
    score: float  # the log-probability; beam search divides it by a length divisor; of several parts, the sum
    finish_reason: FinishReason
    ids: list[int]
    alternatives: list["GeneratedText"] = field(default_factory=list)  # other hypotheses, the best first
    parts: list["GeneratedText"] = field(default_factory=list)
    alignment: list[WordLink] = field(default_factory=list)  # if it was requested

    def summary(self) -> str:
        """The text in one line."""
        return " ".join(self.text.splitlines())

    def body(self) -> str:
        """The text."""
        return self.text

    def rows(self) -> list[Row]:
        """The other hypotheses with their scores; if there are several parts, those of each part with its number."""
        rows = [(f"{other.score:.3f}", other.summary()) for other in self.alternatives]
        of_parts = [(f"part {number}", *row) for number, part in enumerate(self.parts, 1) for row in part.rows()]
        return [*rows, *of_parts]

    def tables(self) -> list[list[Row]]:
        """The other hypotheses, and the alignment."""
        return [self.rows(), [(link.target, link.source, f"{link.weight:.2f}") for link in self.alignment]]

    def to_dict(self) -> dict[str, Any]:
        """The result as JSON values. The source is left out, and so are lists that were not requested."""
        values: dict[str, Any] = {name: getattr(self, name) for name in ("text", "score", "finish_reason", "ids")}
        for name in ("alternatives", "parts"):
            if found := getattr(self, name):
                values[name] = [one.to_dict() for one in found]
        return values | ({"alignment": [asdict(link) for link in self.alignment]} if self.alignment else {})

    @staticmethod
    def from_generation(source: str, result: GenerationResult) -> "GeneratedText":
        """Convert the result of `generate`."""
        others = [GeneratedText.from_generation(source, other) for other in result.alternatives]
        return GeneratedText(source, result.text, result.score, result.finish_reason, result.ids, others)


@dataclass(frozen=True)
class Suggestion:
    """A text that may follow, and the probability that the model gives it."""

    text: str
    probability: float


@dataclass(frozen=True, repr=False)
class Completion(Result):
    """The most likely continuations of a text, such as the rest of a word that is being typed."""

    text: str
    suggestions: list[Suggestion]  # the most likely first

    def summary(self) -> str:
        """The end of the text with the first suggestion."""
        text = one_line(self.text[-MAX_CELL_CHARS // 2 :] + (self.suggestions[0].text if self.suggestions else ""))
        return f"…{text}" if len(self.text) > MAX_CELL_CHARS // 2 else text

    def rows(self) -> list[Row]:
        """The suggestions."""
        return [(repr(one.text), f"{one.probability:.4f}") for one in self.suggestions]


@dataclass(frozen=True, repr=False)
class ChatReply(Result):
    """The reply of a model in a chat. `messages` is the chat with the reply at its end, for the next call."""

    text: str
    finish_reason: FinishReason
    ids: list[int]
    score: float  # the log-probability of the reply
    messages: list[Mapping[str, str]]
    num_dropped: int = 0  # old messages that the model did not see, because its context is too short

    def summary(self) -> str:
        """The text in one line."""
        return one_line(self.text)

    def body(self) -> str:
        """The text."""
        return self.text

    def to_dict(self) -> dict[str, Any]:
        """The result as JSON values, without the chat."""
        names = ("text", "finish_reason", "ids", "score", "num_dropped")
        return {name: getattr(self, name) for name in names}


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
