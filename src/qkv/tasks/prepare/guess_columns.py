"""Guess the columns of a file: by their names first, and by their contents second.

A guess is a *reading*: field → column, as in `data.columns`. Where several readings are likely, all of them are
returned, for the user to choose. An id, a file name or a link is never read as a text.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from pathlib import PurePath
from shlex import quote
from typing import Any

from qkv.data import Record
from qkv.data.modalities import MODALITIES
from qkv.data.objectives.table import OBJECTIVES, RecordField
from qkv.data.readers.columns import get_nested, is_number
from qkv.data.readers.formats import FORMAT_BY_EXTENSION, GROUPED_FORMATS
from qkv.data.readers.joined_columns import JOINED_BY, split_joined
from qkv.data.span_tags import is_segments, is_spans
from qkv.errors import UsageError, shorten
from qkv.tasks.prepare.column_values import Column, ValueKind, is_copy, is_renamed
from qkv.tasks.prepare.columns import drop_alternatives, known_columns

Reading = dict[str, str]

MAX_READINGS = 4
SIMILAR_LENGTH = 2  # two texts of a pair differ in length by at most this factor
SHORTENED = 1.5  # a summary is shorter than its text by at least this factor
TEXT_KINDS: tuple[ValueKind, ...] = ("text", "short text", "word", "label", "other", "number", "constant", "code")
"""What is read as a text, the most likely first."""
TITLE_NAMES = {"title", "headline", "heading", "subject"}
"""The last word of the name of a column that begins another text."""
PAIR_NAMES = ({"question", "query", "premise", "q"}, {"answer", "passage", "hypothesis", "reply", "response", "a"})
DESCRIBING_NAMES = {"split", "fold", "set", "lang", "language", "source", "author", "user", "date", "year", "month"}
"""The last word of the name of a column that describes records, but is rarely what should be learnt."""


class AmbiguousColumns(UsageError):
    """The columns can be read in several ways. The message shows each with two records."""

    def __init__(self, data_name: str, readings: Sequence[Reading], records: Sequence[Record]) -> None:
        self.readings = list(readings)
        shown = "\n".join(describe_readings(readings, records))
        super().__init__(f"{data_name}: there are {len(readings)} ways to read the columns; choose one:\n{shown}")


def describe_readings(readings: Sequence[Reading], records: Sequence[Record]) -> Iterator[str]:
    """The lines that show readings: the options that choose each of them, and what two records then are."""
    for number, reading in enumerate(readings, start=1):
        yield f"  {number}. --columns {' '.join(quote(f'{name}={column}') for name, column in reading.items())}"
        for record in records[:2]:
            fields = (f"{name}: {_shown(record, column)}" for name, column in reading.items())
            yield f"       {' | '.join(fields)}"


def _shown(record: Record, column: str) -> str:
    texts = [_as_text(get_nested(record.fields, str(part))) for part in split_joined(column)]
    return shorten(" ".join(" ".join(texts).split()), 50)


def left_out(names: Sequence[str], reading: Mapping[str, str]) -> list[str]:
    """The columns that a reading does not use."""
    used = {str(part) for column in reading.values() for part in split_joined(column)}
    return [name for name in names if name not in used and name.partition(".")[0] not in used]


def find_readings(
    kind: str, names: Sequence[str], records: Sequence[Record] = (), shortens: bool = False
) -> list[Reading]:
    """The likely readings of columns for an objective, the most likely first. Too few columns are an error.

    With `shortens`, the target is the shorter one of two texts without names that are known.

    >>> find_readings("seq2seq", ["en", "de"])
    [{'source': 'en', 'target': 'de'}]
    """
    if OBJECTIVES[kind].head == "tag":
        names = whole_slots(names, records)
    columns = [Column(name, tuple(_as_text(get_nested(record.fields, name)) for record in records)) for name in names]
    guess = _Guess(kind, columns, shortens)
    if OBJECTIVES[kind].head == "tag":
        guess.segments, guess.spans = (find_column(names, records, suits) for suits in (is_segments, has_spans))
    guess.read_files()
    guess.read_names()
    guess.read_values()
    return [drop_alternatives(kind, reading) for reading in guess.readings[:MAX_READINGS]]


def whole_slots(names: Sequence[str], records: Sequence[Record]) -> list[str]:
    """The names of columns, where an object with texts, such as slots with their values, is one column.

    >>> from qkv.data import FileLocation
    >>> whole_slots(["text", "slots.city"], [Record({"text": "to Rome", "slots": {"city": "Rome"}}, FileLocation("a"))])
    ['text', 'slots']
    """
    objects = {name for one in records for name, value in one.fields.items() if isinstance(value, dict)}
    objects = {name for name in objects if all(is_spans(one.fields.get(name, {})) for one in records)}
    parts = [name.partition(".")[0] for name in names]
    return list(dict.fromkeys(part if part in objects else name for part, name in zip(parts, names, strict=True)))


def find_column(names: Sequence[str], records: Sequence[Record], suits: Callable[[Any], bool]) -> str:
    """The first column whose values all suit; "" if there is none."""
    columns = ((name, [get_nested(record.fields, name) for record in records]) for name in names)
    return next((name for name, values in columns if values and all(map(suits, values))), "")


def has_spans(value: Any) -> bool:
    """Whether a value is a list of spans, which may be empty, or slots."""
    return isinstance(value, list | dict) and is_spans(value)


def _as_text(value: Any) -> str:
    if isinstance(value, list):
        return " ".join(map(str, value))
    return str(value) if isinstance(value, str | int | float | dict) else ""


@dataclass
class _Guess:
    """The readings of some columns, while they are found."""

    kind: str
    columns: list[Column]
    shortens: bool = False
    segments: str = ""  # the column of texts in pieces, some with a label
    spans: str = ""  # the column of spans of another text
    readings: list[Reading] = field(default_factory=lambda: [{}])

    @property
    def best(self) -> Reading:
        """The most likely reading."""
        return self.readings[0]

    def free(self, *kinds: str) -> list[Column]:
        """The columns that no field has in the most likely reading, of any kind or of those given."""
        unused = left_out([column.name for column in self.columns], self.best)
        return [column for column in self.columns if column.name in unused and (not kinds or column.kind in kinds)]

    def missing(self) -> list[RecordField]:
        """The required fields that have no column yet."""
        spec = OBJECTIVES[self.kind]
        lacking = {name.partition(" or ")[0] for name in spec.describe_missing(self.best)}
        return [one for one in spec.fields if one.name in lacking]

    def choose(self, *choices: Reading) -> None:
        """Add one of several choices of fields to each reading."""
        self.readings = [{**reading, **choice} for choice in choices for reading in self.readings]

    def read_files(self) -> None:
        """Give fields of images and sounds the columns whose values are names of such files."""
        for modality in GROUPED_FORMATS.values():
            fields = [one for one in OBJECTIVES[self.kind].fields if one.modality == modality]
            columns = (column for column in self.columns if column.given)
            files = [column for column in columns if {*map(file_modality, column.given)} == {modality}]
            for one, column in zip(fields, files, strict=False):
                self.choose({one.name: column.name})

    def read_names(self) -> None:
        """Give fields the columns with names that are known for them, or that have such a name as a part.

        Of two known names of the same field, either may be meant, unless one is the name of the field itself.
        """
        names = [column.name for column in self.columns]
        by_name = {column.name: column for column in self.columns}
        rivals: list[Reading] = []
        for one in OBJECTIVES[self.kind].fields:
            taken = set(self.best.values())
            if one.name in self.best:
                continue
            known = [name for name in known_columns(one, names) if name not in taken]
            known = [name for name in known if _suits(one, by_name[name])]
            if not known and not one.only_with:
                partly = [column.name for column in self.free() if _has_part(column, one)]
                known = partly if len(partly) == 1 else []
            if not known:
                continue
            self.choose({one.name: known[0]})
            if known[0].lower() != one.name:
                others = [name for name in known[1:] if _rivals(by_name[known[0]], by_name[name])]
                rivals += [{one.name: name} for name in others]
        found = drop_alternatives(self.kind, self.best)
        taken = set(found.values())
        free_rivals = [rival for rival in rivals if rival.keys() <= found.keys() and not taken & set(rival.values())]
        self.readings = [found, *({**found, **rival} for rival in free_rivals)]

    def read_values(self) -> None:
        """Give the other fields columns by their values."""
        spec = OBJECTIVES[self.kind]
        if spec.class_field == "label":
            if not {"label", "score"} & self.best.keys():
                self.choose(*self._labels())
            if not any(one.name in self.best for one in spec.fields if is_payload(one)):
                self.choose(*self._class_texts())
        elif spec.head == "tag":
            if self.missing():
                self.choose(*self._tags())
        else:
            if self.missing():
                self.choose(*self._texts(self.missing()))
            elif "source" in self.best:
                self.choose({}, *self._with_longer("source"))
            if any(one.name == "score" for one in spec.fields) and "score" not in self.best:
                self.choose(*self._scores())

    def too_few(self) -> UsageError:
        """The error for data that lacks a column."""
        needed = OBJECTIVES[self.kind].required_fields
        return UsageError(
            f"the data has the columns {', '.join(column.name for column in self.columns)}, but {self.kind} needs "
            f"{len(needed)} ({', '.join(needed)}); add the missing columns"
        )

    def _texts(self, missing: Sequence[RecordField]) -> list[Reading]:
        """The texts of the missing fields. A field of a payload may be any column, such as files."""
        if any(map(is_payload, missing)):
            found = self.free()[: len(missing)]
            if len(found) < len(missing):
                raise self.too_few()
            return [_assign(missing, found)]
        if {one.modality for one in missing} != {"text"}:
            raise self.too_few()
        chosen: list[Column] = []
        for kind in TEXT_KINDS:
            likely, needed = self._free_texts(kind), len(missing) - len(chosen)
            if len(likely) > needed:
                varied = [column for column in likely if not column.starts_alike]
                likely = varied if len(varied) >= needed else likely
                if needed == 1 and not chosen:  # the longest, and others that are nearly as long
                    longest = max(likely, key=lambda column: column.mean_chars)
                    likely = [column for column in likely if SIMILAR_LENGTH * column.mean_chars >= longest.mean_chars]
                    likely.sort(key=lambda column: -column.mean_chars)
                return [self._in_order(missing, [*chosen, *some]) for some in combinations(likely, needed)]
            chosen += likely
            if len(chosen) == len(missing):
                return [self._in_order(missing, chosen)]
        raise self.too_few()

    def _free_texts(self, kind: str) -> list[Column]:
        """The free columns of a kind; labels that are numbers count as numbers."""
        found = [column for column in self.free("label", "number") if all(map(is_number, column.given))]
        return found if kind == "number" else [column for column in self.free(kind) if column not in found]

    def _in_order(self, missing: Sequence[RecordField], chosen: Sequence[Column]) -> Reading:
        """The columns in the order of the file, or a long text before a short one."""
        ordered = sorted(chosen, key=self.columns.index)
        if self.shortens and len(ordered) == 2 and ordered[1].mean_chars > SHORTENED * ordered[0].mean_chars:
            ordered.reverse()
        return _assign(missing, ordered)

    def _scores(self) -> list[Reading]:
        """The column of numbers beside two texts, if there is one; a number with decimals is the most likely."""
        numbers = [column for column in self.free("number", "label") if all(map(is_number, column.given))]
        numbers = [column for column in numbers if column.has_fractions] or numbers
        return [{"score": column.name} for column in numbers] or [{}]

    def _labels(self) -> list[Reading]:
        """What a classifier learns: labels, else a score, else the column with the fewest values."""
        free = [column for column in self.free("label") if 2 * len(column.given) > len(column.values)]
        likely = [column for column in free if _last_word(column.name) not in DESCRIBING_NAMES] or free
        distinct: list[Column] = []
        for column in sorted(likely, key=lambda column: all(map(is_number, column.given))):  # names before numbers
            if not any(is_renamed(column, other) for other in distinct):
                distinct.append(column)
        scores = [{"score": column.name} for column in self.free("number") if column.has_fractions]
        if distinct:
            labels = [{"label": column.name} for column in sorted(distinct, key=self.columns.index)]
            return [*labels, *scores] if len(labels) > 1 else labels
        if scores:
            return scores
        others = [
            column for column in self.columns if column in self.free() and column.kind not in ("id", "code", "text")
        ]
        others = others or [column for column in self.free() if column.is_repeated] or self.free("text")
        if not others or len(self.columns) < len(OBJECTIVES[self.kind].required_fields):
            raise self.too_few()
        return [{"label": min(others, key=lambda column: (column.num_distinct, column.mean_chars)).name}]

    def _class_texts(self) -> list[Reading]:
        """The text to classify: one column, two texts that are compared, or a title and its text."""
        if text := self.best.get("text"):
            first, others = self._column(text), self.free("text", "short text")
            titles = [column for column in others if _last_word(column.name) in TITLE_NAMES]
            if _last_word(text) not in TITLE_NAMES and len(titles) == 1 and "second" not in self.best:
                return [_joined([titles[0], first])]
            if "second" in self.best:
                return [{}]
            pairs = [column for column in others if _named_as_pair(first.name, column.name)]
            return [{"second": pairs[0].name}] if len(pairs) == 1 else [{}, *self._with_longer("text")]
        texts = next((found for kind in TEXT_KINDS if (found := self.free(kind))), [])
        if not texts:
            raise self.too_few()
        titles = [column for column in self.free("short text") if _last_word(column.name) in TITLE_NAMES]
        return _arrange(sorted({*texts, *titles}, key=self.columns.index))

    def _with_longer(self, name: str) -> list[Reading]:
        """Readings of a field together with a text that is much longer, and that no field has otherwise."""
        chosen = self._column(self.best[name])
        longer = [column for column in self.free("text") if column.mean_chars > SIMILAR_LENGTH * chosen.mean_chars]
        return [{name: JOINED_BY.join((chosen.name, column.name))} for column in longer]

    def _column(self, name: str) -> Column:
        return next(column for column in self.columns if column.name == name)

    def _tags(self) -> list[Reading]:
        """Columns with as many words as tags; tags have fewer different values."""
        if self.segments:
            return [{"tokens": self.segments, "tags": self.segments}]
        if self.spans and (texts := [column for column in self.columns if column.kind in ("text", "short text")]):
            return [{"tokens": self.best.get("tokens", texts[0].name), "tags": self.spans}]
        if len(self.columns) < 2:
            raise self.too_few()
        names = [one.name for one in self.missing()]
        words = {column.name: [value.split() for value in column.values] for column in self.columns}
        counts = {name: [len(value) for value in values] for name, values in words.items()}
        distinct = {name: len({word for value in values for word in value}) for name, values in words.items()}
        readings = []
        for pair in combinations([column.name for column in self.columns], 2):
            tokens, tags = sorted(pair, key=lambda name: -distinct[name])
            guessed = {"tokens": tokens, "tags": tags}
            suits = all(self.best.get(name, column) == column for name, column in guessed.items())
            if suits and counts[tokens] == counts[tags] and max(counts[tokens], default=0) > 1:
                readings.append({name: guessed[name] for name in names})
        return readings or [dict(zip(names, [column.name for column in self.free()], strict=False))]


def _assign(missing: Sequence[RecordField], chosen: Sequence[Column]) -> Reading:
    return {one.name: column.name for one, column in zip(missing, chosen, strict=True)}


def _arrange(texts: Sequence[Column]) -> list[Reading]:
    """How a classifier reads several texts, in their order."""
    kept: list[Column] = []
    for column in texts:
        if not any(is_copy(column, other) for other in kept):
            kept.append(column)
    if len(kept) == 1:
        return [{"text": kept[0].name}]
    longest = max(kept, key=lambda column: column.mean_chars)
    joined = _joined(kept)
    if len(kept) > 2:
        return [{"text": longest.name}, joined]
    first, second = kept
    pair = {"text": first.name, "second": second.name}
    titles = [_last_word(column.name) in TITLE_NAMES for column in kept]
    if any(titles) and not all(titles):
        return [_joined(sorted(kept, key=lambda column: _last_word(column.name) not in TITLE_NAMES))]
    shortest = min(column.mean_chars for column in kept)
    asks = any(2 * sum(value.strip().endswith("?") for value in column.given) > len(column.given) for column in kept)
    if asks or _named_as_pair(first.name, second.name) or SIMILAR_LENGTH * shortest >= longest.mean_chars:
        return [pair]
    if first.name.isdecimal():
        return [joined]
    return [{"text": longest.name}, joined, pair]


def _joined(columns: Sequence[Column]) -> Reading:
    return {"text": JOINED_BY.join(column.name for column in columns)}


def file_modality(value: str) -> str:
    """The modality of a file by its name: image, audio, or "" for any other value."""
    return GROUPED_FORMATS.get(FORMAT_BY_EXTENSION.get(PurePath(value).suffix.lower(), ""), "")


def is_payload(one: RecordField) -> bool:
    """Whether the values of a field are payloads, such as images."""
    return MODALITIES.find(one.modality, "the modality").payload is not None


def _suits(one: RecordField, column: Column) -> bool:
    """Whether a column can be a field: a score needs numbers."""
    return one.modality != "number" or all(map(is_number, column.given))


def _rivals(chosen: Column, other: Column) -> bool:
    """Whether another column with a known name may be meant as well as the chosen one."""
    return chosen.kind == other.kind != "id" and not is_renamed(chosen, other)


def _has_part(column: Column, one: RecordField) -> bool:
    """Whether a word of a column's name is known for a field, as in `review_text`."""
    known = {name for name in (one.name, *one.column_names) if name.isalpha() and len(name) > 1}
    is_possible = column.kind != "id" or one.modality == "label"
    return is_possible and _suits(one, column) and bool(known & set(_words(column.name)))


def _named_as_pair(first: str, second: str) -> bool:
    """Whether the names of two columns are those of a pair.

    >>> _named_as_pair("qtext", "atext"), _named_as_pair("text 1", "text 2"), _named_as_pair("review", "note")
    (True, True, False)
    """
    a, b = _words(first), _words(second)
    questions, answers = PAIR_NAMES
    is_numbered = len(first) == len(second) > 1 and sum(x != y for x, y in zip(first, second, strict=True)) == 1
    return is_numbered or bool(questions & set(a) and answers & set(b))


def _words(name: str) -> list[str]:
    """The words of a column's name.

    >>> _words("Class Index"), _words("newsTitle"), _words("relatedness_score")
    (['class', 'index'], ['news', 'title'], ['relatedness', 'score'])
    """
    return re.split(r"[\W_]+", re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower())


def _last_word(name: str) -> str:
    return _words(name)[-1]
