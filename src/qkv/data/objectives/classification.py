"""Classification of one or two texts: a class, any number of labels, or a score such as the similarity of texts."""

import numpy as np

from qkv.data.cache.examples import EncodedExamples
from qkv.data.objectives.base import FlatExamples, TooLongPolicy, check_length
from qkv.data.objectives.template import SpecialTokenTemplate
from qkv.data.objectives.whole_records import RecordObjective
from qkv.data.ragged import IntArray
from qkv.data.stream.random_bits import EpochRng
from qkv.text import Tokenizer

TARGETS = {"score": "scores", "labels": "label_sets", "label": "class_ids"}
"""The field of the records → the field of `FlatExamples`."""


class ClassificationObjective(RecordObjective):
    """Records with the fields `first`, optionally `second`, and `label`, `labels` (of `num_classes`) or `score`.

    If two texts together are too long, the longer one is truncated first.
    """

    def __init__(
        self,
        examples: EncodedExamples,
        tokenizer: Tokenizer,
        *,
        max_length: int,
        too_long: TooLongPolicy = "error",
        num_classes: int = 0,
    ):
        self.target_field = next((name for name in TARGETS if name in examples.fields), "label")
        self.num_classes = num_classes
        super().__init__(examples, tokenizer, "first", self.target_field)
        self.is_pair = "second" in examples.fields
        self.too_long = too_long
        self.template = SpecialTokenTemplate.from_tokenizer(tokenizer)
        self.num_special_tokens = self.template.num_special_tokens(self.is_pair)
        check_length("max_length", max_length, self.num_special_tokens + 2)
        self.max_lengths = (max_length,)
        target = TARGETS[self.target_field]
        self.optional_fields = frozenset({target, "token_type_ids"} if self.is_pair else {target})
        self.count_records()

    def required_lengths(self, examples: IntArray | slice) -> IntArray:
        """The length of both texts with special tokens: (n, 1)."""
        one, two = self._text_lengths(examples)
        lengths: IntArray = one + two + self._special_counts(two)
        return lengths[:, None]

    def build(self, examples: IntArray, rng: EpochRng) -> FlatExamples:
        """Texts, or pairs with token types, and their classes or scores."""
        one, two = self._text_lengths(examples)
        one, two = truncate_pair(one, two, self.max_lengths[0] - self._special_counts(two))
        first = self.gather_first("first", examples, one)
        second = self.gather_first("second", examples, two) if self.is_pair else None
        ids, lengths = self.template.add_special_tokens(first, second)
        target, offsets = self.examples.gather(self.target_field, examples)
        if self.target_field == "labels":
            sets = np.zeros((len(examples), self.num_classes), np.int64)
            sets[np.repeat(np.arange(len(examples)), np.diff(offsets)), target] = 1
            target = sets
        return FlatExamples(
            lengths,
            ids,
            token_type_ids=self.template.token_type_ids(one, two) if self.is_pair else None,
            **{TARGETS[self.target_field]: target},
        )

    def _text_lengths(self, examples: IntArray | slice) -> tuple[IntArray, IntArray]:
        """The lengths of both texts; the second length is 0 if there is only one text."""
        one = self.field_lengths("first", examples)
        return one, self.field_lengths("second", examples) if self.is_pair else np.zeros_like(one)

    def _special_counts(self, two: IntArray) -> IntArray:
        """The number of special tokens of each example: a second text of length 0 has no separator."""
        return np.where(two > 0, self.num_special_tokens, self.template.num_special_tokens())


def truncate_pair(one: IntArray, two: IntArray, max_total: int | IntArray) -> tuple[IntArray, IntArray]:
    """The lengths of two texts after truncation to `max_total` tokens. The longer text is truncated first.

    >>> [part.tolist() for part in truncate_pair(np.array([9, 2, 4]), np.array([2, 9, 4]), 6)]
    [[4, 2, 3], [2, 4, 3]]
    """
    half = max_total // 2
    kept_one = np.where(two <= half, np.minimum(one, max_total - two), np.minimum(one, max_total - half))
    return kept_one, np.minimum(two, max_total - kept_one)
