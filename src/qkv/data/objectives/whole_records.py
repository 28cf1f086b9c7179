"""Objectives whose examples are whole records; one that is too long is refused, skipped or cut."""

from abc import ABC, abstractmethod
from typing import ClassVar

import numpy as np

from qkv.data.cache.examples import EncodedExamples
from qkv.data.objectives.base import Tally, TooLongPolicy, check_choice, describe_record, too_long_error
from qkv.data.ragged import Ints
from qkv.data.stream.random_bits import EpochRng


class WholeRecords(ABC):
    """What they share. Each sets the attributes, says in `sizes` what records need, and calls `count_records` last."""

    TOO_LONG_CHOICES: ClassVar = ("error", "skip", "truncate")

    examples: EncodedExamples
    capacity: tuple[int, ...]
    too_long: TooLongPolicy
    num_special_tokens: int  # places of a record that are special tokens
    tally: Tally

    @abstractmethod
    def required_lengths(self, examples: Ints | slice) -> Ints:
        """The places that records need uncut: (n, streams)."""

    def num_examples(self, rng: EpochRng) -> int:
        return len(self.examples)

    def origin(self, example: int, rng: EpochRng) -> str:
        return describe_record(self.examples, example)

    def lengths(self, examples: Ints, rng: EpochRng) -> Ints:
        sizes = self.required_lengths(examples)
        if self.too_long == "skip":
            sizes[(sizes > self.capacity).any(axis=1)] = 0
        kept: Ints = np.minimum(sizes, self.capacity)
        return kept

    def count_records(self) -> None:
        """Look at the lengths of all records once, and set `tally`."""
        check_choice("too_long", self.too_long, self.TOO_LONG_CHOICES)
        sizes = self.required_lengths(slice(None))
        over = np.maximum(sizes - np.asarray(self.capacity), 0).sum(axis=1)  # (N,) tokens too many
        long = over > 0
        if self.too_long == "error" and long.any():
            names = ("length", "source_length")[: len(self.capacity)]
            raise too_long_error(long, list(zip(names, sizes.T, self.capacity, strict=True)), self.TOO_LONG_CHOICES)
        skipped = int(long.sum()) if self.too_long == "skip" else 0
        lost = int((sizes.sum(axis=1) - self.num_special_tokens if skipped else over)[long].sum())
        self.tally = Tally(
            records=len(sizes),
            examples=len(sizes) - skipped,
            tokens=int(sizes.sum()) - len(sizes) * self.num_special_tokens - lost,
            skipped=skipped,
            truncated=int(long.sum()) - skipped,
            lost_tokens=lost,
        )

    def field_lengths(self, field: str, examples: Ints | slice) -> Ints:
        """The stored lengths of a field, as int64."""
        return np.asarray(self.examples.lengths(field)[examples], np.int64)
