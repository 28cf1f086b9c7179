"""Base of objectives whose examples are whole records. Records that are too long are an error, skipped or truncated."""

from abc import abstractmethod
from typing import ClassVar

import numpy as np

from qkv.data.objectives.base import (
    ExampleCounts,
    Objective,
    TooLongPolicy,
    check_choice,
    describe_record,
    too_long_error,
)
from qkv.data.ragged import IntArray
from qkv.data.stream.random_bits import EpochRng


class RecordObjective(Objective):
    """The common part of these objectives.

    A subclass sets the attributes, implements `required_lengths`, and calls `count_records` last.
    """

    TOO_LONG_CHOICES: ClassVar = ("error", "skip", "truncate")

    too_long: TooLongPolicy
    num_special_tokens: int  # special tokens of a record, source and target together

    @abstractmethod
    def required_lengths(self, examples: IntArray | slice) -> IntArray:
        """The lengths of records before truncation: (n, sides)."""

    def num_examples(self, rng: EpochRng) -> int:
        """The number of records."""
        return len(self.examples)

    def origin(self, example: int, rng: EpochRng) -> str:
        """The record, for messages."""
        return describe_record(self.examples, example)

    def lengths(self, examples: IntArray, rng: EpochRng) -> IntArray:
        """The lengths of records after truncation: (n, sides). Skipped records have length 0."""
        lengths = self.required_lengths(examples)
        if self.too_long == "skip":
            lengths[(lengths > self.max_lengths).any(axis=1)] = 0
        kept: IntArray = np.minimum(lengths, self.max_lengths)
        return kept

    def count_records(self) -> None:
        """Read the lengths of all records, and set `counts`."""
        check_choice("too_long", self.too_long, self.TOO_LONG_CHOICES)
        lengths = self.required_lengths(slice(None))
        # (N,) by how many tokens each record is too long
        excess = np.maximum(lengths - np.asarray(self.max_lengths), 0).sum(axis=1)
        is_long = excess > 0
        if self.too_long == "error" and is_long.any():
            names = ("max_length", "max_source_length")[: len(self.max_lengths)]
            raise too_long_error(
                is_long, list(zip(names, lengths.T, self.max_lengths, strict=True)), self.TOO_LONG_CHOICES
            )
        skipped = int(is_long.sum()) if self.too_long == "skip" else 0
        lost_tokens = int((lengths.sum(axis=1) - self.num_special_tokens if skipped else excess)[is_long].sum())
        self.counts = ExampleCounts(
            records=len(lengths),
            examples=len(lengths) - skipped,
            tokens=int(lengths.sum()) - len(lengths) * self.num_special_tokens - lost_tokens,
            skipped=skipped,
            truncated=int(is_long.sum()) - skipped,
            lost_tokens=lost_tokens,
        )

    def field_lengths(self, field: str, examples: IntArray | slice) -> IntArray:
        """The stored lengths of a field, as int64."""
        return np.asarray(self.examples.lengths(field)[examples], np.int64)

    def gather_first(self, field: str, examples: IntArray, lengths: IntArray) -> tuple[IntArray, IntArray]:
        """The first `lengths[i]` tokens of a field of each record, concatenated; and `lengths`."""
        return self.examples.gather(field, examples, np.zeros_like(lengths), lengths)[0], lengths
