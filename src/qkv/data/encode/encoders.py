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

from qkv.data.encode.align import char_span_to_tokens, first_nonspace_character, sentence_starts, word_ids
from qkv.data.objectives.base import IGNORE_INDEX, check_choice
from qkv.data.problems import InvalidRecord
from qkv.data.records import Record
from qkv.errors import QkvError, UsageError, suggest_name
from qkv.text import Tokenizer

VERSION = 1  # raise it when the integers of the same record change
EncodedFields = dict[str, Any]


def encode_fingerprint(name: str, tokenizer: Tokenizer, *choices: Any) -> str:
    """A hash of all that decides the integers of a record."""
    parts = json.dumps([VERSION, name, tokenizer.fingerprint, *choices], sort_keys=True)
    return hashlib.sha256(parts.encode()).hexdigest()[:32]


def get_field(record: Record, name: str, types: type | tuple[type, ...] = str) -> Any:
    """A field of a record; `BadRecord` is raised where it is missing or of another kind."""
    if name not in record.fields:
        raise InvalidRecord(f"no field {name!r}; {suggest_name(name, record.fields)}", "missing field")
    value = record.fields[name]
    if not isinstance(value, types) or isinstance(value, bool):
        wanted = " or ".join(one.__name__ for one in (types if isinstance(types, tuple) else (types,)))
        raise InvalidRecord(f"field {name!r} is {type(value).__name__}, not {wanted}", "wrong kind of value")
    return value


def tokenize_batch(tokenizer: Tokenizer, texts: Sequence[str]) -> list[list[int] | InvalidRecord]:
    """The ids of many texts at once; a text that has none is a `BadRecord` in its place."""
    try:
        return list(tokenizer.encode_batch(texts))
    except QkvError:
        return [tokenize_or_error(tokenizer, text) for text in texts]


def tokenize_or_error(tokenizer: Tokenizer, text: str) -> list[int] | InvalidRecord:
    """The ids of one text, or why it has none."""
    try:
        return tokenizer.encode(text, add_special_tokens=False)
    except QkvError as error:
        return InvalidRecord(str(error))


class EncodeTexts:
    """A base: each record's texts, those of many records encoded together. `texts` maps arrays to the records' fields.

    A text without tokens is refused unless `empty`.
    """

    name = "texts"

    def __init__(self, tokenizer: Tokenizer, text_fields: dict[str, str], *, allow_empty: bool = False):
        self.tokenizer = tokenizer
        self.text_fields = text_fields
        self.allow_empty = allow_empty
        self.fields: tuple[str, ...] = tuple(text_fields)
        self.fingerprint = encode_fingerprint(self.name, tokenizer, list(text_fields.items()), allow_empty)

    def tokenizer_for(self, name: str) -> Tokenizer:
        """The tokenizer of one of the arrays."""
        return self.tokenizer

    def other_fields(self, record: Record) -> EncodedFields:
        """The arrays that are not tokens; may raise `BadRecord`."""
        return {}

    def __call__(self, records: list[Record]) -> list[EncodedFields | InvalidRecord]:
        results: list[EncodedFields | InvalidRecord] = []
        texts: dict[str, list[str]] = {name: [] for name in self.text_fields}
        for record in records:
            try:
                found = {name: get_field(record, source) for name, source in self.text_fields.items()}
                results.append(self.other_fields(record))
            except InvalidRecord as bad:
                results.append(bad)
                found = dict.fromkeys(self.text_fields, "")
            for name, text in found.items():
                texts[name].append(text)
        for name, listed in texts.items():
            for place, ids in enumerate(tokenize_batch(self.tokenizer_for(name), listed)):
                example = results[place]
                if isinstance(example, InvalidRecord):
                    continue
                if isinstance(ids, InvalidRecord):
                    results[place] = ids
                elif not ids and not self.allow_empty:
                    results[place] = InvalidRecord(f"field {self.text_fields[name]!r} has no tokens", "empty text")
                else:
                    example[name] = ids
        return results


class EncodePair(EncodeTexts):
    """Source and target texts: `source`, `target`."""

    name = "pair"

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
        self.fingerprint = encode_fingerprint(self.name, tokenizer, source, target, self.source_tokenizer.fingerprint)

    def tokenizer_for(self, name: str) -> Tokenizer:
        return self.source_tokenizer if name == "source" else self.tokenizer


class EncodeClass(EncodeTexts):
    """One or two texts and what they are: `first` (`second`), and `label`, `score` or neither (contrastive pairs).

    `classes` are the names of the labels, in the order of their numbers; `classes_of` finds them in the data.
    """

    name = "class"

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
        self.class_ids = {name: number for number, name in enumerate(self.classes)}
        self.fields += ("label",) * bool(label) + ("score",) * bool(score)
        self.fingerprint = encode_fingerprint(self.name, tokenizer, first, second, label, self.classes, score)

    def other_fields(self, record: Record) -> EncodedFields:
        if self.label:
            name = str(get_field(record, self.label, (str, int)))
            if not name.strip():
                raise InvalidRecord(f"the {self.label} is empty", "no label")
            if name not in self.class_ids:
                known = suggest_name(name, self.classes[:50])
                raise InvalidRecord(f"the {self.label} {name!r} is not one of the classes; {known}", "unknown class")
            return {"label": self.class_ids[name]}
        return {"score": parse_number(record, self.score)} if self.score else {}


def parse_number(record: Record, name: str) -> float:
    """A number, or a text that is one."""
    value = get_field(record, name, (int, float, str))
    try:
        number = float(value)
    except ValueError:
        number = float("nan")
    if not isfinite(number):
        raise InvalidRecord(f"the {name} {value!r} is not a number", "not a number")
    return number


def find_classes(records: Iterable[Record], name: str) -> tuple[str, ...]:
    """All classes in a field (of single labels, or of lists of tags), sorted. An empty label is none.

    >>> from qkv.data.records import FileLocation
    >>> find_classes([Record({"label": name}, FileLocation("x")) for name in ("no", "yes", "no")], "label")
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


def encode_or_error(encode: Callable[[Record], EncodedFields], record: Record) -> EncodedFields | InvalidRecord:
    """One record's example, or the `BadRecord` that says why there is none."""
    try:
        return encode(record)
    except InvalidRecord as bad:
        return bad
    except QkvError as error:  # a text that cannot be encoded
        return InvalidRecord(str(error))


class EncodeOneByOne(ABC):
    """A base for encodes that look at one record at a time: `one` may raise `BadRecord`."""

    fields: tuple[str, ...]
    fingerprint: str

    @abstractmethod
    def encode_one(self, record: Record) -> EncodedFields:
        """What becomes of a record."""

    def __call__(self, records: list[Record]) -> list[EncodedFields | InvalidRecord]:
        return [encode_or_error(self.encode_one, record) for record in records]


class EncodeText(EncodeTexts):
    """Documents: `ids`, and if asked for `words` (the number of each token's word) and `sentences` (where they begin).

    An empty document is kept: it gives no training example, and the objective counts it.
    """

    name = "text"

    def __init__(self, tokenizer: Tokenizer, text: str = "text", *, words: bool = False, sentences: bool = False):
        super().__init__(tokenizer, {"ids": text}, allow_empty=True)
        self.text, self.words, self.sentences = text, words, sentences
        self.fields += ("words",) * words + ("sentences",) * sentences
        self.fingerprint = encode_fingerprint(self.name, tokenizer, text, words, sentences)

    def __call__(self, records: list[Record]) -> list[EncodedFields | InvalidRecord]:
        if not (self.words or self.sentences):
            return super().__call__(records)
        return [encode_or_error(self._encode_with_offsets, record) for record in records]

    def _encode_with_offsets(self, record: Record) -> EncodedFields:
        text = get_field(record, self.text)
        ids, offsets = self.tokenizer.encode_with_offsets(text)
        example: EncodedFields = {"ids": ids}
        if self.words:
            example["words"] = word_ids(text, offsets)
        if self.sentences:
            example["sentences"] = sentence_starts(text, offsets)
        return example


class EncodeTags(EncodeOneByOne):
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
        label_subwords: str = "first",
    ):
        check_choice("pieces", label_subwords, ("first", "all"))
        self.tokenizer = tokenizer
        self.words, self.tags, self.label_subwords = words, tags, label_subwords
        self.classes = tuple(classes)
        self.class_ids = {name: number for number, name in enumerate(self.classes)}
        self.continuation_tags = [  # the tag of a word's further tokens
            self.class_ids.get("I-" + name[2:], number) if name.startswith("B-") else number
            for name, number in self.class_ids.items()
        ]
        self.fields = ("ids", "tags")
        self.fingerprint = encode_fingerprint("tags", tokenizer, words, tags, self.classes, label_subwords)

    def encode_one(self, record: Record) -> EncodedFields:
        words, tags = get_field(record, self.words, list), get_field(record, self.tags, list)
        if len(words) != len(tags):
            raise InvalidRecord(f"{len(words)} {self.words} but {len(tags)} {self.tags}", "uneven lists")
        unknown = [tag for tag in tags if str(tag) not in self.class_ids]
        if unknown:
            known = suggest_name(str(unknown[0]), self.classes[:50])
            raise InvalidRecord(f"the tag {unknown[0]!r} is not one of the classes; {known}", "unknown class")
        text = " ".join(map(str, words))
        ids, offsets = self.tokenizer.encode_with_offsets(text)
        word_at = [number for number, word in enumerate(words) for _ in range(len(str(word)) + 1)]  # space after it too
        labels, before = [], -1
        for offset in offsets:
            place = first_nonspace_character(text, offset)
            word = word_at[place]
            number = self.class_ids[str(tags[word])]
            if text[place : place + 1].isspace() or (word == before and self.label_subwords == "first"):
                number = IGNORE_INDEX
            elif word == before:
                number = self.continuation_tags[number]
            labels.append(number)
            before = word if number != IGNORE_INDEX else before
        return {"ids": ids, "tags": labels}


class EncodeAnswer(EncodeOneByOne):
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
        self.record_fields = (question, context, answers, starts)
        self.fields = ("question", "context", "begins", "ends", "answer")
        self.fingerprint = encode_fingerprint("answer", tokenizer, *self.record_fields)

    def encode_one(self, record: Record) -> EncodedFields:
        kinds = (str, str, list, list)
        question, context, answers, starts = (
            get_field(record, name, kind) for name, kind in zip(self.record_fields, kinds, strict=True)
        )
        ids, offsets = self.tokenizer.encode_with_offsets(context)
        span: tuple[int, int] | None = (-1, -1)
        if answers:
            if len(starts) != len(answers):
                raise InvalidRecord(f"{len(answers)} answers but {len(starts)} starts", "uneven lists")
            text, start = answers[0], starts[0]
            if not isinstance(text, str) or type(start) is not int:
                raise InvalidRecord(
                    f"the answer {text!r} at {start!r} is not a text and a number", "wrong kind of value"
                )
            span = char_span_to_tokens(offsets, start, start + len(text))
            if span is None:
                raise InvalidRecord(f"no token of the context stands at the answer {text!r}", "misplaced answer")
        return {
            "question": self.tokenizer.encode(question, add_special_tokens=False),
            "context": ids,
            "begins": [begin for begin, _ in offsets],
            "ends": [end for _, end in offsets],
            "answer": list(span or ()),
        }
