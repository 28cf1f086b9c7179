"""Records to integers: one class for each kind of record, called with many records at a time.

Only the texts' own tokens are kept. What is laid around them (start, end, separators) and what is hidden or moved is
the objective's business, so one cache serves all objectives that read the same fields.
"""

import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from math import isfinite
from typing import Any

from qkv.data.align import first_character, sentence_starts, tokens_of, word_numbers
from qkv.data.objectives.base import IGNORE, check_choice
from qkv.data.problems import BadRecord
from qkv.data.records import Record
from qkv.errors import QkvError, UsageError, nearest
from qkv.text import Tokenizer

VERSION = 1  # raise it when the integers of the same record change
Example = dict[str, Any]


def fingerprint(kind: str, tokenizer: Tokenizer, *choices: Any) -> str:
    """A hash of all that decides the integers of a record."""
    parts = json.dumps([VERSION, kind, tokenizer.fingerprint, *choices], sort_keys=True)
    return hashlib.sha256(parts.encode()).hexdigest()[:32]


def field(record: Record, name: str, kind: type | tuple[type, ...] = str) -> Any:
    """A field of a record; `BadRecord` is raised where it is missing or of another kind."""
    if name not in record.fields:
        raise BadRecord(f"no field {name!r}; {nearest(name, record.fields)}", "missing field")
    value = record.fields[name]
    if not isinstance(value, kind) or isinstance(value, bool):
        wanted = " or ".join(one.__name__ for one in (kind if isinstance(kind, tuple) else (kind,)))
        raise BadRecord(f"field {name!r} is {type(value).__name__}, not {wanted}", "wrong kind of value")
    return value


def tokenised(tokenizer: Tokenizer, texts: Sequence[str]) -> list[list[int] | BadRecord]:
    """The ids of many texts at once; a text that has none is a `BadRecord` in its place."""
    try:
        return list(tokenizer.encode_batch(texts))
    except QkvError:
        return [one_tokenised(tokenizer, text) for text in texts]


def one_tokenised(tokenizer: Tokenizer, text: str) -> list[int] | BadRecord:
    """The ids of one text, or why it has none."""
    try:
        return tokenizer.encode(text, special=False)
    except QkvError as error:
        return BadRecord(str(error))


class EncodeTexts:
    """A base: each record's texts, those of many records encoded together. `texts` maps arrays to the records' fields.

    A text without tokens is refused unless `empty`.
    """

    kind = "texts"

    def __init__(self, tokenizer: Tokenizer, texts: dict[str, str], *, empty: bool = False):
        self.tokenizer = tokenizer
        self.texts = texts
        self.empty = empty
        self.fields: tuple[str, ...] = tuple(texts)
        self.fingerprint = fingerprint(self.kind, tokenizer, list(texts.items()), empty)

    def tokenizer_of(self, name: str) -> Tokenizer:
        """The tokenizer of one of the arrays."""
        return self.tokenizer

    def rest(self, record: Record) -> Example:
        """The arrays that are not tokens; may raise `BadRecord`."""
        return {}

    def __call__(self, records: list[Record]) -> list[Example | BadRecord]:
        results: list[Example | BadRecord] = []
        texts: dict[str, list[str]] = {name: [] for name in self.texts}
        for record in records:
            try:
                found = {name: field(record, source) for name, source in self.texts.items()}
                results.append(self.rest(record))
            except BadRecord as bad:
                results.append(bad)
                found = dict.fromkeys(self.texts, "")
            for name, text in found.items():
                texts[name].append(text)
        for name, listed in texts.items():
            for place, ids in enumerate(tokenised(self.tokenizer_of(name), listed)):
                example = results[place]
                if isinstance(example, BadRecord):
                    continue
                if isinstance(ids, BadRecord):
                    results[place] = ids
                elif not ids and not self.empty:
                    results[place] = BadRecord(f"field {self.texts[name]!r} has no tokens", "empty text")
                else:
                    example[name] = ids
        return results


class EncodePair(EncodeTexts):
    """Source and target texts: `source`, `target`."""

    kind = "pair"

    def __init__(
        self,
        tokenizer: Tokenizer,
        source: str = "source",
        target: str = "target",
        *,
        source_tokenizer: Tokenizer | None = None,
    ):
        super().__init__(tokenizer, {"source": source, "target": target})
        self.source_tokenizer = source_tokenizer or tokenizer
        self.fingerprint = fingerprint(self.kind, tokenizer, source, target, self.source_tokenizer.fingerprint)

    def tokenizer_of(self, name: str) -> Tokenizer:
        return self.source_tokenizer if name == "source" else self.tokenizer


class EncodeClass(EncodeTexts):
    """One or two texts and what they are: `first` (`second`), and `label`, `score` or neither (contrastive pairs).

    `classes` are the names of the labels, in the order of their numbers; `classes_of` finds them in the data.
    """

    kind = "class"

    def __init__(
        self,
        tokenizer: Tokenizer,
        first: str = "text",
        second: str | None = None,
        *,
        label: str | None = None,
        classes: Sequence[str] = (),
        score: str | None = None,
    ):
        super().__init__(tokenizer, {"first": first, **({"second": second} if second else {})})
        if label and score:
            raise UsageError("give a label or a score, not both")
        if label and not classes:
            raise UsageError(f"the classes of {label!r} must be given; classes_of(records, {label!r}) finds them")
        self.label, self.score = label, score
        self.classes = tuple(classes)
        self.numbers = {name: number for number, name in enumerate(self.classes)}
        self.fields += ("label",) * bool(label) + ("score",) * bool(score)
        self.fingerprint = fingerprint(self.kind, tokenizer, first, second, label, self.classes, score)

    def rest(self, record: Record) -> Example:
        if self.label:
            name = str(field(record, self.label, (str, int)))
            if not name.strip():
                raise BadRecord(f"the {self.label} is empty", "no label")
            if name not in self.numbers:
                known = nearest(name, self.classes[:50])
                raise BadRecord(f"the {self.label} {name!r} is not one of the classes; {known}", "unknown class")
            return {"label": self.numbers[name]}
        return {"score": number_of(record, self.score)} if self.score else {}


def number_of(record: Record, name: str) -> float:
    """A number, or a text that is one."""
    value = field(record, name, (int, float, str))
    try:
        number = float(value)
    except ValueError:
        number = float("nan")
    if not isfinite(number):
        raise BadRecord(f"the {name} {value!r} is not a number", "not a number")
    return number


def classes_of(records: Iterable[Record], name: str) -> tuple[str, ...]:
    """All classes in a field (of single labels, or of lists of tags), sorted. An empty label is none.

    >>> from qkv.data.records import Where
    >>> classes_of([Record({"label": name}, Where("x")) for name in ("no", "yes", "no")], "label")
    ('no', 'yes')
    """
    found: set[str] = set()
    for record in records:
        value = record.fields.get(name, [])
        if isinstance(value, list):
            found.update(map(str, value))
        elif str(value).strip():
            found.add(str(value))
    return tuple(sorted(found))


def guarded(encode: Callable[[Record], Example], record: Record) -> Example | BadRecord:
    """One record's example, or the `BadRecord` that says why there is none."""
    try:
        return encode(record)
    except BadRecord as bad:
        return bad
    except QkvError as error:  # a text that cannot be encoded
        return BadRecord(str(error))


class EncodeEach(ABC):
    """A base for encodes that look at one record at a time: `one` may raise `BadRecord`."""

    fields: tuple[str, ...]
    fingerprint: str

    @abstractmethod
    def one(self, record: Record) -> Example:
        """What becomes of a record."""

    def __call__(self, records: list[Record]) -> list[Example | BadRecord]:
        return [guarded(self.one, record) for record in records]


class EncodeText(EncodeTexts):
    """Documents: `ids`, and if asked for `words` (the number of each token's word) and `sentences` (where they begin).

    An empty document is kept: it gives no training example, and the objective counts it.
    """

    kind = "text"

    def __init__(self, tokenizer: Tokenizer, text: str = "text", *, words: bool = False, sentences: bool = False):
        super().__init__(tokenizer, {"ids": text}, empty=True)
        self.text, self.words, self.sentences = text, words, sentences
        self.fields += ("words",) * words + ("sentences",) * sentences
        self.fingerprint = fingerprint(self.kind, tokenizer, text, words, sentences)

    def __call__(self, records: list[Record]) -> list[Example | BadRecord]:
        if not (self.words or self.sentences):
            return super().__call__(records)
        return [guarded(self._marked, record) for record in records]

    def _marked(self, record: Record) -> Example:
        text = field(record, self.text)
        ids, offsets = self.tokenizer.encode_offsets(text)
        example: Example = {"ids": ids}
        if self.words:
            example["words"] = word_numbers(text, offsets)
        if self.sentences:
            example["sentences"] = sentence_starts(text, offsets)
        return example


class EncodeTags(EncodeEach):
    """Words with tags: `ids` and, beside each token, `tags`.

    A word's tag stands on its first token (`pieces="first"`), the others being ignored, or on all of them: then what
    follows a `B-` is marked `I-`, where there is such a class. Words are joined by spaces, as a user's text would be.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        words: str = "tokens",
        tags: str = "tags",
        *,
        classes: Sequence[str],
        pieces: str = "first",
    ):
        check_choice("pieces", pieces, ("first", "all"))
        self.tokenizer = tokenizer
        self.words, self.tags, self.pieces = words, tags, pieces
        self.classes = tuple(classes)
        self.numbers = {name: number for number, name in enumerate(self.classes)}
        self.following = [  # the tag of a word's further tokens
            self.numbers.get("I-" + name[2:], number) if name.startswith("B-") else number
            for name, number in self.numbers.items()
        ]
        self.fields = ("ids", "tags")
        self.fingerprint = fingerprint("tags", tokenizer, words, tags, self.classes, pieces)

    def one(self, record: Record) -> Example:
        words, tags = field(record, self.words, list), field(record, self.tags, list)
        if len(words) != len(tags):
            raise BadRecord(f"{len(words)} {self.words} but {len(tags)} {self.tags}", "uneven lists")
        unknown = [tag for tag in tags if str(tag) not in self.numbers]
        if unknown:
            known = nearest(str(unknown[0]), self.classes[:50])
            raise BadRecord(f"the tag {unknown[0]!r} is not one of the classes; {known}", "unknown class")
        text = " ".join(map(str, words))
        ids, offsets = self.tokenizer.encode_offsets(text)
        word_at = [number for number, word in enumerate(words) for _ in range(len(str(word)) + 1)]  # space after it too
        labels, before = [], -1
        for offset in offsets:
            place = first_character(text, offset)
            word = word_at[place]
            number = self.numbers[str(tags[word])]
            if text[place : place + 1].isspace() or (word == before and self.pieces == "first"):
                number = IGNORE
            elif word == before:
                number = self.following[number]
            labels.append(number)
            before = word if number != IGNORE else before
        return {"ids": ids, "tags": labels}


class EncodeAnswer(EncodeEach):
    """Questions on passages, as SQuAD has them: `question`, `context`, the characters of the context's tokens
    (`begins`, `ends`), and `answer`: the first and last token of the first answer given, −1, −1 where there is none.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        question: str = "question",
        context: str = "context",
        answers: str = "answers",
        starts: str = "starts",
    ):
        self.tokenizer = tokenizer
        self.names = (question, context, answers, starts)
        self.fields = ("question", "context", "begins", "ends", "answer")
        self.fingerprint = fingerprint("answer", tokenizer, *self.names)

    def one(self, record: Record) -> Example:
        kinds = (str, str, list, list)
        question, context, answers, starts = (
            field(record, name, kind) for name, kind in zip(self.names, kinds, strict=True)
        )
        ids, offsets = self.tokenizer.encode_offsets(context)
        span: tuple[int, int] | None = (-1, -1)
        if answers:
            if len(starts) != len(answers):
                raise BadRecord(f"{len(answers)} answers but {len(starts)} starts", "uneven lists")
            text, start = answers[0], starts[0]
            if not isinstance(text, str) or type(start) is not int:
                raise BadRecord(f"the answer {text!r} at {start!r} is not a text and a number", "wrong kind of value")
            span = tokens_of(offsets, start, start + len(text))
            if span is None:
                raise BadRecord(f"no token of the context stands at the answer {text!r}", "misplaced answer")
        return {
            "question": self.tokenizer.encode(question, special=False),
            "context": ids,
            "begins": [begin for begin, _ in offsets],
            "ends": [end for _, end in offsets],
            "answer": list(span or ()),
        }
