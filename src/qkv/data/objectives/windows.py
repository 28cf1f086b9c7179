"""Long records cut into consecutive windows, each of which is a training example."""

from functools import partial

import numpy as np

from qkv.data.cache.examples import EncodedExamples
from qkv.data.cache.writer import RecordEncoder
from qkv.data.encode.encoders import EncodeText
from qkv.data.objectives.base import (
    ExampleCounts,
    Objective,
    TooLongPolicy,
    check_choice,
    check_length,
    describe_record,
    too_long_error,
)
from qkv.data.objectives.table import ObjectiveSetup
from qkv.data.objectives.template import SpecialTokenTemplate
from qkv.data.objectives.window_index import CHUNK_RECORDS, WindowIndex
from qkv.data.ragged import IntArray
from qkv.data.stream.random_bits import EpochRng
from qkv.text import Tokenizer

TOO_LONG_CHOICES = ("error", "skip", "truncate", "split")


class Windows:
    """Cuts records into windows of at most `window_length` units. Every unit is in exactly one window.

    A unit is a token or a prediction. A record of n > 0 tokens has n + `extra_units` units: a causal LM makes n − 1
    predictions, or n + 1 with BOS and EOS. An empty record has no units. With `random_offset`, records longer than a
    window are cut at different positions in each epoch; the number of windows then varies a little between epochs.

    >>> windows = Windows(np.array([5, 0, 2]), window_length=3)
    >>> windows.num_windows(EpochRng(0)), [part.tolist() for part in windows.locate(np.arange(3), EpochRng(0))]
    (3, [[0, 0, 2], [0, 3, 0], [3, 2, 2]])
    """

    def __init__(
        self,
        lengths: np.ndarray,
        window_length: int,
        *,
        extra_units: int = 0,
        too_long: TooLongPolicy = "split",
        random_offset: bool = False,
        num_special_tokens: int = 0,
    ):
        check_choice("too_long", too_long, TOO_LONG_CHOICES)
        self.lengths = lengths
        self.window_length = window_length
        self.extra_units = extra_units
        self.too_long = too_long
        self.random_offset = random_offset and too_long == "split"
        self.num_special_tokens = num_special_tokens  # special tokens in each window, only for error messages
        self._indexes: dict[int, WindowIndex] = {}
        self.counts = self._count()

    def num_windows(self, rng: EpochRng) -> int:
        """The number of windows in an epoch."""
        return self._index(self._offset(rng)).total

    def locate(self, windows: IntArray, rng: EpochRng) -> tuple[IntArray, IntArray, IntArray]:
        """(n,) window numbers → (record, first unit of the window in the record, length)."""
        offset = self._offset(rng)
        record, number = self._index(offset).locate(windows)
        units = self._units_kept(self._num_units(record))
        shift = np.where(units > self.window_length, offset, 0)
        first = np.maximum(number * self.window_length - shift, 0)
        return record, first, np.minimum((number + 1) * self.window_length - shift, units) - first

    def _num_units(self, records: IntArray) -> IntArray:
        """The number of units of records, before the policy for long records is applied."""
        lengths = np.asarray(self.lengths[records], np.int64)
        return np.where(lengths > 0, np.maximum(lengths + self.extra_units, 0), 0)

    def _units_kept(self, units: IntArray) -> IntArray:
        """The number of units that remain after the policy for long records is applied."""
        if self.too_long == "skip":
            return np.where(units > self.window_length, 0, units)
        return np.minimum(units, self.window_length) if self.too_long == "truncate" else units

    def _windows_per_record(self, offset: int, records: IntArray) -> IntArray:
        units = self._units_kept(self._num_units(records))
        return -(-(units + np.where(units > self.window_length, offset, 0)) // self.window_length)

    def _offset(self, rng: EpochRng) -> int:
        return rng.hash64("windows") % self.window_length if self.random_offset else 0

    def _index(self, offset: int) -> WindowIndex:
        if offset not in self._indexes:
            if len(self._indexes) > 1:  # two indexes are enough, because at most two epochs are in use at a time
                self._indexes.clear()
            self._indexes[offset] = WindowIndex(len(self.lengths), partial(self._windows_per_record, offset))
        return self._indexes[offset]

    def _count(self) -> ExampleCounts:
        counts = ExampleCounts(records=len(self.lengths))
        num_long = 0
        for first in range(0, len(self.lengths), CHUNK_RECORDS):
            records = np.arange(first, min(first + CHUNK_RECORDS, len(self.lengths)))
            units = self._num_units(records)
            num_long += int((units > self.window_length).sum())
            counts.tokens += int(np.sum(self.lengths[records], dtype=np.int64))
            counts.empty += int((units == 0).sum())
            counts.lost_tokens += int((units - self._units_kept(units)).sum())
        if num_long and self.too_long == "error":
            units = self._num_units(np.arange(len(self.lengths)))
            special = self.num_special_tokens
            sides = [("max_length", units + special, self.window_length + special)]
            raise too_long_error(units > self.window_length, sides, TOO_LONG_CHOICES)
        counts.tokens -= counts.lost_tokens
        counts.examples = self._index(0).total
        counts.skipped = num_long * (self.too_long == "skip")
        counts.truncated = num_long * (self.too_long == "truncate")
        counts.split = num_long * (self.too_long == "split")
        return counts


class WindowObjective(Objective):
    """The common part of objectives over windows. A subclass calls `cut_windows`."""

    windows: Windows

    def cut_windows(
        self, window_length: int, too_long: TooLongPolicy, random_offset: bool = False, **settings: int
    ) -> None:
        """Cut the field `ids` into windows, and count them."""
        lengths = self.examples.lengths("ids")
        self.windows = Windows(lengths, window_length, too_long=too_long, random_offset=random_offset, **settings)
        self.counts = self.windows.counts

    def num_examples(self, rng: EpochRng) -> int:
        """The number of windows in an epoch."""
        return self.windows.num_windows(rng)

    def origin(self, example: int, rng: EpochRng) -> str:
        """The record and token range of a window, for messages."""
        record, first, length = (int(part[0]) for part in self.windows.locate(np.array([example]), rng))
        return describe_record(self.examples, record, first, length)


class TemplateWindowObjective(WindowObjective):
    """The common part of objectives that add special tokens to each window and label its tokens."""

    def __init__(
        self,
        examples: EncodedExamples,
        tokenizer: Tokenizer,
        *fields: str,
        max_length: int,
        too_long: TooLongPolicy,
        random_offset: bool = False,
    ):
        super().__init__(examples, tokenizer, *fields)
        self.template = SpecialTokenTemplate.from_tokenizer(tokenizer)
        special = self.template.num_special_tokens()
        check_length("max_length", max_length, special + 1)
        self.max_lengths = (max_length,)
        self.cut_windows(max_length - special, too_long, random_offset, num_special_tokens=special)

    def lengths(self, examples: IntArray, rng: EpochRng) -> IntArray:
        """The length of each window with its special tokens: (n, 1)."""
        return self.windows.locate(examples, rng)[2][:, None] + self.template.num_special_tokens()


def encode_documents(setup: ObjectiveSetup) -> RecordEncoder:
    """The encoder of documents, with word indices for whole-word masking and sentence starts for permutation."""
    options = setup.options
    return EncodeText(setup.tokenizer, words=options.whole_word_masking, sentences=options.permute_sentences)
