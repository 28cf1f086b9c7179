"""What is laid around a text, or around two: `[CLS] a [SEP] b [SEP]`, `a </s>`, …"""

from dataclasses import dataclass

import numpy as np

from qkv.data.ragged import Ints, Ragged, ragged_join
from qkv.text import Tokenizer

PROBE = ("a", "b")  # two texts whose ids show where a template puts its own


@dataclass(frozen=True)
class Frame:
    """The special ids before, between and after the texts, and the sentence type of the second one.

    >>> Frame(first=(2,), between=(3,), last=(3,), second_type=1).size(pair=True)
    3
    """

    first: tuple[int, ...] = ()
    between: tuple[int, ...] = ()
    last: tuple[int, ...] = ()
    second_type: int = 0

    @classmethod
    def of(cls, tokenizer: Tokenizer) -> "Frame":
        """The frame of the tokenizer's own template; where that adds nothing, the one that its roles suggest."""
        one, two = (tokenizer.encode(text, special=False) for text in PROBE)
        single = tokenizer.encode(PROBE[0])
        if one and two and len(single) > len(one):
            pair, types = tokenizer.encode_typed(*PROBE)
            start = find(single, one)
            middle = start + len(one)
            second = len(pair) - (len(single) - middle) - len(two)  # a pair ends as a single text does
            between = tuple(pair[middle:second])
            return cls(tuple(single[:start]), between, tuple(single[middle:]), types[second])
        roles = tokenizer.roles
        first = next(((role,) for role in (roles.classify, roles.start) if role is not None), ())
        last = next(((role,) for role in (roles.separator, roles.end) if role is not None), ())
        return cls(first, last, last, 1 if roles.classify is not None else 0)

    @classmethod
    def ends(cls, tokenizer: Tokenizer) -> "Frame":
        """Nothing before, the end token after: a translation's source."""
        end = tokenizer.roles.end
        return cls() if end is None else cls((), (end,), (end,))

    def size(self, pair: bool = False) -> int:
        """How many places the frame itself takes."""
        return len(self.first) + len(self.last) + (len(self.between) if pair else 0)

    def ids(self, one: Ragged, two: Ragged | None = None) -> Ragged:
        """Texts laid end to end → the same, each in its frame. A pair whose second text is empty is a single text."""
        sizes = self._sizes(one, two)
        special = [tiled(part, size) for part, size in zip((self.first, self.between, self.last), sizes, strict=True)]
        return self._laid(one, two, special)

    def spread(self, outside: int, one: Ragged, two: Ragged | None = None) -> np.ndarray:
        """Values beside the texts' tokens (labels), spread over the framed ones; `outside` at the frame's places."""
        return self._laid(one, two, [(np.full(int(size.sum()), outside), size) for size in self._sizes(one, two)])[0]

    def types(self, one: Ints, two: Ints) -> np.ndarray:
        """The sentence types of framed pairs, from the lengths of their texts."""
        first, between, last = self._sizes((one, one), (two, two))
        second = np.full(int(two.sum()), self.second_type)
        closing = np.repeat(np.where(two > 0, self.second_type, 0), last)
        special = [(np.zeros(int(size.sum()), np.int64), size) for size in (first, between)]
        return self._laid((np.zeros(int(one.sum()), np.int64), one), (second, two), [*special, (closing, last)])[0]

    def _sizes(self, one: Ragged, two: Ragged | None) -> list[Ints]:
        """The places of the frame's three parts in each example: (n,) each."""
        count = len(one[1])
        paired = np.zeros(count, bool) if two is None else two[1] > 0
        return [np.full(count, len(self.first)), np.where(paired, len(self.between), 0), np.full(count, len(self.last))]

    def _laid(self, one: Ragged, two: Ragged | None, special: list[Ragged]) -> Ragged:
        first, between, last = special
        return ragged_join([first, one, *([between, two] if two is not None else []), last])


def tiled(ids: tuple[int, ...], lengths: Ints) -> Ragged:
    """The same ids for each example that has room for them."""
    return np.tile(np.asarray(ids, np.int32), int((lengths > 0).sum())), lengths


def find(ids: list[int], part: list[int]) -> int:
    """Where `part` stands in `ids`; 0 where it does not."""
    return next((i for i in range(len(ids)) if ids[i : i + len(part)] == part), 0)
