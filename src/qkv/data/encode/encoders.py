"""Encoders turn batches of records into integers. There is one class for each type of record.

Only the tokens of the texts are encoded. Objectives add special tokens and masks later, so one cache serves all
objectives that read the same fields.
"""

import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import Any, TypeVar

from qkv.data.encode.align import sentence_starts, word_indices
from qkv.data.labels import label_text
from qkv.data.modalities import get_field, parse_number
from qkv.data.problems import InvalidRecord
from qkv.data.records import Record
from qkv.errors import QkvError, UsageError, suggest_name
from qkv.text import Tokenizer

VERSION = 2  # part of every fingerprint; increase it when an encoder gives other integers for the same record
EncodedFields = dict[str, Any]
Encoded = TypeVar("Encoded")


def encode_fingerprint(name: str, tokenizer: Tokenizer, *choices: Any) -> str:
    """A hash of everything that the encoded integers depend on, except the record."""
    settings = json.dumps([VERSION, name, tokenizer.fingerprint, *choices], sort_keys=True)
    return hashlib.sha256(settings.encode()).hexdigest()[:32]


def tokenize_batch(tokenizer: Tokenizer, texts: Sequence[str]) -> list[list[int] | InvalidRecord]:
    """The ids of many texts; an `InvalidRecord` for a text that cannot be encoded."""
    try:
        return list(tokenizer.encode_batch(texts))
    except QkvError:
        return [encode_or_error(lambda text: tokenizer.encode(text, add_special_tokens=False), text) for text in texts]


def encode_or_error(encode: Callable[[Any], Encoded], value: Any) -> Encoded | InvalidRecord:
    """Return `encode(value)`, or an `InvalidRecord` if encoding fails."""
    try:
        return encode(value)
    except InvalidRecord as invalid:
        return invalid
    except QkvError as error:  # a text that the tokenizer cannot encode
        return InvalidRecord(str(error))


class EncodeTexts:
    """Base of the encoders that tokenize the texts of many records together.

    `text_fields` maps each encoded field to a field of the record. A text without tokens is invalid unless
    `allow_empty` is set. `name` and `choices` identify the encoder in its fingerprint.
    """

    allow_empty = False

    def __init__(self, name: str, tokenizer: Tokenizer, text_fields: dict[str, str], *choices: Any):
        self.tokenizer = tokenizer
        self.text_fields = text_fields
        self.fields: tuple[str, ...] = tuple(text_fields)
        self.fingerprint = encode_fingerprint(name, tokenizer, *choices)

    def tokenizer_for(self, field: str) -> Tokenizer:
        """The tokenizer of one of the encoded fields."""
        return self.tokenizer

    def other_fields(self, record: Record) -> EncodedFields:
        """Encode the fields that are not texts; may raise `InvalidRecord`."""
        return {}

    def __call__(self, records: list[Record]) -> list[EncodedFields | InvalidRecord]:
        results: list[EncodedFields | InvalidRecord] = []
        texts: dict[str, list[str]] = {field: [] for field in self.text_fields}
        for record in records:
            try:
                record_texts = {field: get_field(record, source) for field, source in self.text_fields.items()}
                results.append(self.other_fields(record))
            except InvalidRecord as invalid:
                results.append(invalid)
                record_texts = dict.fromkeys(self.text_fields, "")
            for field, text in record_texts.items():
                texts[field].append(text)
        for field, field_texts in texts.items():
            for index, ids in enumerate(tokenize_batch(self.tokenizer_for(field), field_texts)):
                example = results[index]
                if isinstance(example, InvalidRecord):
                    continue
                if isinstance(ids, InvalidRecord):
                    results[index] = ids
                elif not ids and not self.allow_empty:
                    results[index] = InvalidRecord(f"the field {self.text_fields[field]!r} has no tokens", "empty text")
                else:
                    example[field] = ids
        return results


class EncodeClass(EncodeTexts):
    """Encodes one or two texts as `first` (and `second`), with `label`, `labels`, `score` or none (contrastive pairs).

    `classes` are the names of the labels, in the order of their ids; `find_classes` finds them in the data. With
    `multi_label`, the label of a record is a list of any number of names. Scores are divided by `max_score`. Records
    with the label `out_of_scope` are left out.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        first: str | None = "text",
        second: str | None = None,
        *,
        label: str | None = None,
        classes: Sequence[str] = (),
        multi_label: bool = False,
        score: str | None = None,
        max_score: float = 1.0,
        out_of_scope: str = "",
    ):
        fields = {name: field for name, field in (("first", first), ("second", second)) if field}
        choices = [*(["multi_label"] if multi_label else []), *([max_score] if max_score != 1 else [])]
        choices += [out_of_scope] if out_of_scope else []
        super().__init__("class", tokenizer, fields, first, second, label, classes, score, *choices)
        if label and score:
            raise UsageError(f"label = {label!r} and score = {score!r} exclude each other; set one of them")
        if label and not classes:
            raise UsageError(f"the classes of {label!r} are missing; find_classes(records, {label!r}) finds them")
        self.label, self.multi_label, self.score, self.max_score = label, multi_label, score, max_score
        self.out_of_scope = out_of_scope
        self.classes = tuple(classes)
        self.class_ids = {name: class_id for class_id, name in enumerate(self.classes)}
        self.fields += ("labels" if multi_label else "label",) * bool(label) + ("score",) * bool(score)

    def other_fields(self, record: Record) -> EncodedFields:
        """The id of the label, the ids of all labels, or the score."""
        if self.label and self.multi_label and isinstance(record.fields.get(self.label), list):
            labels = get_field(record, self.label, "tags")
            return {"labels": sorted({self.find_class(label_text(label, self.label)) for label in labels})}
        if self.label:
            found = self.find_class(label_text(get_field(record, self.label, "label"), self.label))
            return {"labels": [found]} if self.multi_label else {"label": found}
        return {"score": parse_number(record, self.score) / self.max_score} if self.score else {}

    def find_class(self, name: str) -> int:
        """The id of a class; raises `InvalidRecord` for an unknown one."""
        if name == self.out_of_scope:
            raise InvalidRecord(
                f"the {self.label} is {name!r}, and no model is trained on such records",
                "out of scope",
                is_expected=True,
            )
        if name not in self.class_ids:
            hint = suggest_name(name, self.classes[:50])
            raise InvalidRecord(f"the {self.label} {name!r} is not one of the classes; {hint}", "unknown class")
        return self.class_ids[name]


def find_classes(records: Iterable[Record], name: str) -> tuple[str, ...]:
    """All distinct labels or tags in a field, sorted. Records with an invalid label are ignored.

    >>> from qkv.data.records import FileLocation
    >>> find_classes([Record({"label": name}, FileLocation("x")) for name in ("no", "yes", "no")], "label")
    ('no', 'yes')
    """
    classes: set[str] = set()
    for record in records:
        value = record.fields.get(name, [])
        with suppress(InvalidRecord):
            classes.update([label_text(one) for one in (value if isinstance(value, list) else [value])])
    return tuple(sorted(classes))


class EncodeOneByOne(ABC):
    """Base of the encoders that encode one record at a time."""

    fields: tuple[str, ...]
    fingerprint: str

    @abstractmethod
    def encode_one(self, record: Record) -> EncodedFields:
        """Encode a record; may raise `InvalidRecord`."""

    def __call__(self, records: list[Record]) -> list[EncodedFields | InvalidRecord]:
        return [encode_or_error(self.encode_one, record) for record in records]


class EncodeText(EncodeTexts):
    """Encodes documents as `ids`, and optionally `words` (the word index of each token) and `sentences`.

    `sentences` are the indices of the tokens that begin a sentence. An empty document is valid: it gives no training
    example, and the objective counts it.
    """

    allow_empty = True

    def __init__(self, tokenizer: Tokenizer, text: str = "text", *, words: bool = False, sentences: bool = False):
        super().__init__("text", tokenizer, {"ids": text}, text, words, sentences)
        self.text, self.words, self.sentences = text, words, sentences
        self.fields += ("words",) * words + ("sentences",) * sentences

    def __call__(self, records: list[Record]) -> list[EncodedFields | InvalidRecord]:
        if not (self.words or self.sentences):
            return super().__call__(records)
        return [encode_or_error(self._encode_with_offsets, record) for record in records]

    def _encode_with_offsets(self, record: Record) -> EncodedFields:
        text = get_field(record, self.text)
        ids, offsets = self.tokenizer.encode_with_offsets(text)
        example: EncodedFields = {"ids": ids}
        if self.words:
            example["words"] = word_indices(text, offsets)
        if self.sentences:
            example["sentences"] = sentence_starts(text, offsets)
        return example
