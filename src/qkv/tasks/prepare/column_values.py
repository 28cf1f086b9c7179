"""What the values of a column look like: texts, words, labels, numbers, ids. A guess of columns needs it.

The names of columns decide first, and these kinds decide what is left.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from qkv.data.readers.columns import is_number
from qkv.text.bm25 import normalized_words

ValueKind = Literal["text", "short text", "word", "label", "number", "other", "constant", "code", "id"]
"""`short text`: nearly every value is different, and has few words, such as names. `other`: dates and the like.
`code`: different words with digits, numbers of rows, links, names of files; `id`: the same, by the column's name."""

COPIED_FRACTION = 0.9
"""A column is a copy of another if more than this fraction of its values have the same words."""
ID_NAMES = {
    *("id", "ids", "uid", "guid", "uuid", "idx", "index", "key", "hash", "url", "link", "doi", "isbn"),
    *("path", "file", "filename", "fname"),
}
"""The last word of a name of a column of ids, files or links."""
UNIQUE_FRACTION = 0.9
REPEATED_FRACTION = 0.5  # labels occur twice, on average
MAX_LABEL_WORDS = 5
MIN_TEXT_WORDS = 4
NUMBERED = re.compile(r"[\W_]*[^\W\d]*[\W_]*\d[\w\W]*|\w+://\S+|\S+\.[a-z]{2,4}|[0-9a-f]{8,}|[0-9a-f-]{36}")
"""What an id looks like: u17, train_0, https://…, img.jpg, or hexadecimal digits."""


@dataclass(frozen=True)
class Column:
    """A column, with the values of a sample of the records."""

    name: str
    values: tuple[str, ...]  # as texts; "" where a record has none

    @cached_property
    def given(self) -> tuple[str, ...]:
        """The values that are not blank."""
        return tuple(value for value in self.values if value.strip())

    @cached_property
    def num_distinct(self) -> int:
        """The number of different values."""
        return len(set(self.given))

    @cached_property
    def mean_chars(self) -> float:
        """The mean length of a value."""
        return sum(map(len, self.given)) / max(1, len(self.given))

    @cached_property
    def mean_words(self) -> float:
        """The mean number of words of a value; each Chinese or Japanese character is a word."""
        return sum(len(normalized_words(value)) for value in self.given) / max(1, len(self.given))

    @property
    def has_fractions(self) -> bool:
        """Whether the values are numbers, and some of them not whole."""
        return all(map(is_number, self.given)) and any(float(value) % 1 for value in self.given)

    @property
    def is_repeated(self) -> bool:
        """Whether values occur several times, as labels do."""
        return 1 < self.num_distinct <= REPEATED_FRACTION * len(self.given)

    @cached_property
    def kind(self) -> ValueKind:
        """What the values look like, as a whole."""
        if self.given and is_id_column(self.name, self.given):
            return "id"
        if self.num_distinct <= 1:
            return "constant"
        if self._is_numbered():
            return "code"
        if all(map(is_number, self.given)):
            return "label" if self.is_repeated and not self.has_fractions else "number"
        if self.is_repeated and self.mean_words <= MAX_LABEL_WORDS:
            return "label"
        if not any(map(str.isalpha, "".join(self.given))):
            return "other"
        if not is_text_column(self.given):
            return "word"
        return "short text" if self.mean_words < MIN_TEXT_WORDS else "text"

    def _is_numbered(self) -> bool:
        """Whether the values are different, and look like numbers of rows, codes, links or names of files."""
        if self.num_distinct < UNIQUE_FRACTION * len(self.given) or any(" " in value.strip() for value in self.given):
            return False
        if all(value.isdecimal() for value in self.given):
            numbers = [int(value) for value in self.given]
            return len(numbers) > 2 and numbers in (sorted(numbers), sorted(numbers, reverse=True))
        has_letters = any(map(str.isalpha, "".join(self.given)))
        return has_letters and all(NUMBERED.fullmatch(value.strip()) for value in self.given)

    @cached_property
    def starts_alike(self) -> bool:
        """Whether nearly all values begin with the same two words, as notes on licences do."""
        starts = [" ".join(value.split()[:2]) for value in self.given if len(value.split()) > 2]
        is_varied = min(len(starts), self.num_distinct) > UNIQUE_FRACTION * len(self.given) > 2
        return is_varied and len(set(starts)) == 1


def is_id_column(name: str, values: Sequence[str]) -> bool:
    """Whether a column has ids or files: its name is `id`, or ends like `user_id`, and no value has spaces.

    >>> is_id_column("user_id", ["u1", "u2"]), is_id_column("text_id", ["Selamat pagi", "Terima kasih"])
    (True, False)
    >>> is_id_column("fname", ["train_0", "train_1"]), is_id_column("Class Index", ["3", "4"])
    (True, True)
    """
    last = re.split(r"[\W_]+", re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower())[-1]
    return last in ID_NAMES and not any(" " in value.strip() for value in values)


def is_text_column(values: Sequence[str]) -> bool:
    """Whether most values have several words.

    >>> is_text_column(["so good", "bad", "not bad"]), is_text_column(["2021-05-03 10:03", "2021-05-04 11:17"])
    (True, False)
    """
    num_texts = sum(sum(map(str.isalpha, normalized_words(value))) > 1 for value in values)
    return 2 * num_texts > len(values)


def is_copy(first: Column, second: Column) -> bool:
    """Whether nearly all pairs of values have the same words, as a text and its normalised form have."""
    pairs = zip(first.values, second.values, strict=True)
    num_same = sum(normalized_words(a) == normalized_words(b) for a, b in pairs)
    return num_same > COPIED_FRACTION * len(first.values)


def is_renamed(first: Column, second: Column) -> bool:
    """Whether one column has another name for each value of the other, as a label and its number have."""
    pairs = set(zip(first.values, second.values, strict=True))
    return len(pairs) == len(set(first.values)) == len(set(second.values))
