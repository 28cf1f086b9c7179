"""What is laid around a text, or around two: `[CLS] a [SEP] b [SEP]`, `a </s>`, …"""

from dataclasses import dataclass

import numpy as np

from qkv.data.ragged import Ints, Ragged, ragged_join
from qkv.text import Tokenizer

PROBE_TEXTS = ("a", "b")  # two texts whose ids show where a template puts its own


@dataclass(frozen=True)
class SpecialTokenTemplate:
    """The special ids before, between and after the texts, and the sentence type of the second one.

    >>> SpecialTokenTemplate(prefix=(2,), separator=(3,), suffix=(3,)).num_special_tokens(pair=True)
    3
    """

    prefix: tuple[int, ...] = ()
    separator: tuple[int, ...] = ()
    suffix: tuple[int, ...] = ()
    second_token_type: int = 0

    @classmethod
    def from_tokenizer(cls, tokenizer: Tokenizer) -> "SpecialTokenTemplate":
        """The frame of the tokenizer's own template; where that adds nothing, the one that its roles suggest."""
        one, two = (tokenizer.encode(text, add_special_tokens=False) for text in PROBE_TEXTS)
        single = tokenizer.encode(PROBE_TEXTS[0])
        if one and two and len(single) > len(one):
            pair, types = tokenizer.encode_with_token_types(*PROBE_TEXTS)
            start = find_sublist(single, one)
            middle = start + len(one)
            second = len(pair) - (len(single) - middle) - len(two)  # a pair ends as a single text does
            between = tuple(pair[middle:second])
            return cls(tuple(single[:start]), between, tuple(single[middle:]), types[second])
        roles = tokenizer.special_tokens
        first = next(((role,) for role in (roles.cls, roles.bos) if role is not None), ())
        last = next(((role,) for role in (roles.sep, roles.eos) if role is not None), ())
        return cls(first, last, last, 1 if roles.cls is not None else 0)

    @classmethod
    def eos_only(cls, tokenizer: Tokenizer) -> "SpecialTokenTemplate":
        """Nothing before, the end token after: a translation's source."""
        end = tokenizer.special_tokens.eos
        return cls() if end is None else cls((), (end,), (end,))

    def num_special_tokens(self, pair: bool = False) -> int:
        """How many places the frame itself takes."""
        return len(self.prefix) + len(self.suffix) + (len(self.separator) if pair else 0)

    def add_special_tokens(self, one: Ragged, two: Ragged | None = None) -> Ragged:
        """Texts laid end to end → the same, each in its frame. A pair whose second text is empty is a single text."""
        sizes = self._special_counts(one, two)
        special = [
            repeat_ids(part, size) for part, size in zip((self.prefix, self.separator, self.suffix), sizes, strict=True)
        ]
        return self._join(one, two, special)

    def align_labels(self, fill_value: int, one: Ragged, two: Ragged | None = None) -> np.ndarray:
        """Values beside the texts' tokens (labels), spread over the framed ones; `outside` at the frame's places."""
        return self._join(
            one, two, [(np.full(int(size.sum()), fill_value), size) for size in self._special_counts(one, two)]
        )[0]

    def token_type_ids(self, one: Ints, two: Ints) -> np.ndarray:
        """The sentence types of framed pairs, from the lengths of their texts."""
        first, between, last = self._special_counts((one, one), (two, two))
        second = np.full(int(two.sum()), self.second_token_type)
        closing = np.repeat(np.where(two > 0, self.second_token_type, 0), last)
        special = [(np.zeros(int(size.sum()), np.int64), size) for size in (first, between)]
        return self._join((np.zeros(int(one.sum()), np.int64), one), (second, two), [*special, (closing, last)])[0]

    def _special_counts(self, one: Ragged, two: Ragged | None) -> list[Ints]:
        """The places of the frame's three parts in each example: (n,) each."""
        count = len(one[1])
        paired = np.zeros(count, bool) if two is None else two[1] > 0
        return [
            np.full(count, len(self.prefix)),
            np.where(paired, len(self.separator), 0),
            np.full(count, len(self.suffix)),
        ]

    def _join(self, one: Ragged, two: Ragged | None, special: list[Ragged]) -> Ragged:
        first, between, last = special
        return ragged_join([first, one, *([between, two] if two is not None else []), last])


def repeat_ids(ids: tuple[int, ...], lengths: Ints) -> Ragged:
    """The same ids for each example that has room for them."""
    return np.tile(np.asarray(ids, np.int32), int((lengths > 0).sum())), lengths


def find_sublist(ids: list[int], part: list[int]) -> int:
    """Where `part` stands in `ids`; 0 where it does not."""
    return next((i for i in range(len(ids)) if ids[i : i + len(part)] == part), 0)
