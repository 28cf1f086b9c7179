"""Special tokens around a text or a pair of texts: `[CLS] a [SEP] b [SEP]`, `a </s>`, …"""

from dataclasses import dataclass

import numpy as np

from qkv.data.ragged import IntArray, Ragged, ragged_join
from qkv.text import Tokenizer

PROBE_TEXTS = ("a", "b")  # encoded to find out where a tokenizer adds special tokens


@dataclass(frozen=True)
class SpecialTokenTemplate:
    """The special token ids before, between and after the texts, and the token type of the second text.

    >>> SpecialTokenTemplate(prefix=(2,), separator=(3,), suffix=(3,)).num_special_tokens(pair=True)
    3
    """

    prefix: tuple[int, ...] = ()
    separator: tuple[int, ...] = ()
    suffix: tuple[int, ...] = ()
    second_token_type: int = 0

    @classmethod
    def from_tokenizer(cls, tokenizer: Tokenizer) -> "SpecialTokenTemplate":
        """The template of the tokenizer. If the tokenizer adds nothing, the template is made from cls or bos, and sep
        or eos.
        """
        one, two = (tokenizer.encode(text, add_special_tokens=False) for text in PROBE_TEXTS)
        single = tokenizer.encode(PROBE_TEXTS[0])
        if one and two and len(single) > len(one):
            pair, token_types = tokenizer.encode_with_token_types(*PROBE_TEXTS)
            start = find_sublist(single, one)
            middle = start + len(one)
            second = len(pair) - (len(single) - middle) - len(two)  # a pair has the same suffix as a single text
            separator = tuple(pair[middle:second])
            return cls(tuple(single[:start]), separator, tuple(single[middle:]), token_types[second])
        special = tokenizer.special_tokens
        prefix = next(((token,) for token in (special.cls, special.bos) if token is not None), ())
        suffix = next(((token,) for token in (special.sep, special.eos) if token is not None), ())
        return cls(prefix, suffix, suffix, 1 if special.cls is not None else 0)

    @classmethod
    def eos_only(cls, tokenizer: Tokenizer) -> "SpecialTokenTemplate":
        """A template that only adds EOS after each text."""
        eos = tokenizer.special_tokens.eos
        return cls() if eos is None else cls((), (eos,), (eos,))

    @classmethod
    def for_source(cls, tokenizer: Tokenizer) -> "SpecialTokenTemplate":
        """The special tokens that the tokenizer adds to a source at inference; there may be none."""
        adds = len(tokenizer.encode("a")) > len(tokenizer.encode("a", add_special_tokens=False))
        return cls.from_tokenizer(tokenizer) if adds else cls()

    def num_special_tokens(self, pair: bool = False) -> int:
        """The number of special tokens that the template adds to a text, or to a pair."""
        return len(self.prefix) + len(self.suffix) + (len(self.separator) if pair else 0)

    def add_special_tokens(self, one: Ragged, two: Ragged | None = None) -> Ragged:
        """Add special tokens to concatenated texts, or to pairs of texts.

        A pair whose second text is empty gets the special tokens of a single text.
        """
        parts = zip((self.prefix, self.separator, self.suffix), self._special_counts(one, two), strict=True)
        return self._join(one, two, [repeat_ids(ids, counts) for ids, counts in parts])

    def align_labels(self, fill_value: int, one: Ragged, two: Ragged | None = None) -> np.ndarray:
        """Align values of tokens (labels) with the output of `add_special_tokens`.

        Special tokens get `fill_value`.
        """
        filled = [(np.full(int(counts.sum()), fill_value), counts) for counts in self._special_counts(one, two)]
        return self._join(one, two, filled)[0]

    def token_type_ids(self, one: IntArray, two: IntArray) -> np.ndarray:
        """The token types of pairs with special tokens, from the lengths of both texts."""
        prefix, separator, suffix = self._special_counts((one, one), (two, two))
        second = np.full(int(two.sum()), self.second_token_type)
        end = np.repeat(np.where(two > 0, self.second_token_type, 0), suffix)
        special = [(np.zeros(int(counts.sum()), np.int64), counts) for counts in (prefix, separator)]
        return self._join((np.zeros(int(one.sum()), np.int64), one), (second, two), [*special, (end, suffix)])[0]

    def _special_counts(self, one: Ragged, two: Ragged | None) -> list[IntArray]:
        """The number of tokens of the prefix, separator and suffix in each example: (n,) each."""
        n = len(one[1])
        has_second = np.zeros(n, bool) if two is None else two[1] > 0
        separator = np.where(has_second, len(self.separator), 0)
        return [np.full(n, len(self.prefix)), separator, np.full(n, len(self.suffix))]

    def _join(self, one: Ragged, two: Ragged | None, special: list[Ragged]) -> Ragged:
        prefix, separator, suffix = special
        return ragged_join([prefix, one, *([separator, two] if two is not None else []), suffix])


def repeat_ids(ids: tuple[int, ...], lengths: IntArray) -> Ragged:
    """Repeat `ids` for each example whose length is not 0, concatenated; and the lengths."""
    return np.tile(np.asarray(ids, np.int32), int((lengths > 0).sum())), lengths


def find_sublist(ids: list[int], part: list[int]) -> int:
    """The index of the list `part` in `ids`; 0 if `ids` does not contain it."""
    return next((i for i in range(len(ids)) if ids[i : i + len(part)] == part), 0)
