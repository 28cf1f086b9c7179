"""Contrastive pairs for embeddings: two texts that belong together, among others that do not.

The first text of each pair lies in the source row, the second in the target row, under the same segment number. Both
rows go through the same encoder; a pair's two vectors should be near each other and far from those of other pairs.
"""

import numpy as np

from qkv.data.cache.examples import EncodedExamples, require_fields
from qkv.data.objectives.base import FlatExamples, TooLongPolicy, check_length
from qkv.data.objectives.seq2seq import proportional_source_length
from qkv.data.objectives.template import SpecialTokenTemplate
from qkv.data.objectives.whole_records import WholeRecords
from qkv.data.ragged import Ints
from qkv.data.stream.random_bits import EpochRng
from qkv.errors import UsageError
from qkv.text import Tokenizer

TARGET_AND_SOURCE = ("second", "first")  # target row, source row


class Contrastive(WholeRecords):
    """Examples with `first` and `second`, and perhaps `score`, how near to each other they should be."""

    def __init__(
        self,
        examples: EncodedExamples,
        tokenizer: Tokenizer,
        *,
        max_length: int,
        max_source_length: int | None = None,
        too_long: TooLongPolicy = "error",
        template: SpecialTokenTemplate | None = None,
    ):
        require_fields(examples, *TARGET_AND_SOURCE)
        self.examples = examples
        self.too_long = too_long
        self.template = template or SpecialTokenTemplate.from_tokenizer(tokenizer)
        self.has_scores = "score" in examples.fields
        self.pad_token_id = tokenizer.special_tokens.pad or 0
        if max_source_length is None:
            max_source_length = proportional_source_length(max_length, self.required_lengths(slice(None)))
        check_length("length", max_length, self.template.num_special_tokens() + 1)
        check_length("source_length", max_source_length, self.template.num_special_tokens() + 1)
        self.capacity = (max_length, max_source_length)
        self.num_special_tokens = 2 * self.template.num_special_tokens()
        self.outputs = frozenset({"source", *(["scores"] if self.has_scores else [])})
        self.count_records()
        self._check_scores()

    def _check_scores(self) -> None:
        """Scores are compared with cosines: of larger ones, all would ask for the same."""
        if not self.has_scores or not len(self.examples):
            return
        scores = self.examples.gather("score", np.arange(len(self.examples)))[0]
        least, most = float(np.nanmin(scores)), float(np.nanmax(scores))
        if least < -1 or most > 1:
            raise UsageError(
                f"the scores of these pairs go from {least:g} to {most:g}, and the cosine that they are compared with "
                f"from -1 to 1: bring them there, say by dividing them by {max(-least, most):g}"
            )

    def required_lengths(self, examples: Ints | slice) -> Ints:
        return (
            np.stack([self.field_lengths(side, examples) for side in TARGET_AND_SOURCE], axis=1)
            + self.template.num_special_tokens()
        )

    def build(self, examples: Ints, rng: EpochRng) -> FlatExamples:
        counts = (
            np.minimum(self.required_lengths(examples), self.capacity) - self.template.num_special_tokens()
        )  # (n, 2)
        nothing = np.zeros(len(counts), np.int64)
        (ids, lengths), (source_ids, source_lengths) = (
            self.template.add_special_tokens((self.examples.gather(side, examples, nothing, count)[0], count))
            for side, count in zip(TARGET_AND_SOURCE, counts.T, strict=True)
        )
        scores = self.examples.gather("score", examples)[0] if self.has_scores else None
        return FlatExamples(lengths, ids, source_lengths=source_lengths, source_ids=source_ids, scores=scores)
