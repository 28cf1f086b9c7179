"""Contrastive learning of embeddings from pairs of texts that belong together.

The first text of a pair is stored as the source and the second as the target, with the same document id, so that pairs
are packed like those of sequence-to-sequence models. One encoder reads both texts. The model learns to make the two
vectors of a pair similar, and the vectors of different pairs dissimilar.
"""

import numpy as np

from qkv.data.cache.examples import EncodedExamples
from qkv.data.objectives.base import FlatExamples, TooLongPolicy, check_length
from qkv.data.objectives.seq2seq import proportional_source_length
from qkv.data.objectives.template import SpecialTokenTemplate
from qkv.data.objectives.whole_records import RecordObjective
from qkv.data.ragged import IntArray
from qkv.data.stream.random_bits import EpochRng
from qkv.errors import UsageError
from qkv.text import Tokenizer

SIDE_FIELDS = ("second", "first")  # the fields of the target and of the source


class ContrastiveObjective(RecordObjective):
    """Records with `first` and `second`, and optionally `score`: the desired cosine similarity of the two vectors."""

    def __init__(
        self,
        examples: EncodedExamples,
        tokenizer: Tokenizer,
        *,
        max_length: int,
        max_source_length: int | None = None,
        too_long: TooLongPolicy = "error",
    ):
        super().__init__(examples, tokenizer, *SIDE_FIELDS)
        self.too_long = too_long
        self.template = SpecialTokenTemplate.from_tokenizer(tokenizer)
        self.has_scores = "score" in examples.fields
        if max_source_length is None:
            max_source_length = proportional_source_length(max_length, self.required_lengths(slice(None)))
        minimum = self.template.num_special_tokens() + 1
        check_length("max_length", max_length, minimum)
        check_length("max_source_length", max_source_length, minimum)
        self.max_lengths = (max_length, max_source_length)
        self.num_special_tokens = 2 * self.template.num_special_tokens()
        self.optional_fields = frozenset({"source", "scores"} if self.has_scores else {"source"})
        self.count_records()
        self._check_scores()

    def _check_scores(self) -> None:
        """Raise if a score is outside −1 to 1, the range of the cosine similarity."""
        if not self.has_scores or not len(self.examples):
            return
        scores = self.examples.gather("score", np.arange(len(self.examples)))[0]
        lowest, highest = float(np.nanmin(scores)), float(np.nanmax(scores))
        if lowest < -1 or highest > 1:
            raise UsageError(
                f"the scores range from {lowest:g} to {highest:g}, but they are compared with cosine similarities, "
                f"which range from -1 to 1: set data.max_score = {max(-lowest, highest):g} in the recipe"
            )

    def required_lengths(self, examples: IntArray | slice) -> IntArray:
        """The lengths of both texts with special tokens: (n, 2)."""
        lengths = [self.field_lengths(field, examples) for field in SIDE_FIELDS]
        return np.stack(lengths, axis=1) + self.template.num_special_tokens()

    def build(self, examples: IntArray, rng: EpochRng) -> FlatExamples:
        """The second text as the target and the first as the source, each with special tokens; and the scores."""
        kept = (
            np.minimum(self.required_lengths(examples), self.max_lengths) - self.template.num_special_tokens()
        )  # (n, 2)
        (ids, lengths), (source_ids, source_lengths) = (
            self.template.add_special_tokens(self.gather_first(field, examples, count))
            for field, count in zip(SIDE_FIELDS, kept.T, strict=True)
        )
        scores = self.examples.gather("score", examples)[0] if self.has_scores else None
        return FlatExamples(lengths, ids, source_lengths=source_lengths, source_ids=source_ids, scores=scores)
