"""Words as payloads: their hashed features, for models that read words instead of subwords.

n words, F features of each
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from qkv.blocks.words import WordsConfig
from qkv.data.payloads import FlatPayloads, PayloadFormat
from qkv.data.ragged import IntArray, ragged_index, ragged_starts
from qkv.text.word_features import NUM_FEATURES, hash_features


def word_features(words: Sequence[str]) -> np.ndarray:
    """The features of words, (n, F)."""
    return np.array([hash_features(word) for word in words], np.int32).reshape(-1, NUM_FEATURES)


class WordFormat(PayloadFormat):
    """A list of words as a payload."""

    fingerprint = "words 1"  # increase it when a word gets other features
    dtype = "int32"

    def __init__(self) -> None:
        super().__init__(WordsConfig(features=NUM_FEATURES))

    def store(self, value: Any) -> tuple[np.ndarray, tuple[int, int]]:
        """The features of all words, (n · F,)."""
        return word_features(value).reshape(-1), (len(value), 1)

    def decode(self, stored: np.ndarray, size: tuple[int, int], key: int) -> np.ndarray:
        """Stored features as (n, F)."""
        return stored.reshape(-1, NUM_FEATURES)


def word_payloads(features: np.ndarray, counts: IntArray, row_lengths: IntArray, first: int) -> FlatPayloads:
    """The words of several examples, as one payload each. `counts` are the numbers of words.

    The first word of an example is token `first` of its sequence.
    """
    sizes = np.stack([counts, np.ones_like(counts)], axis=1)
    positions = ragged_index(ragged_starts(row_lengths) + first, counts)
    return FlatPayloads(features.reshape(-1, NUM_FEATURES), sizes, counts, positions)
