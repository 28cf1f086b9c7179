"""Contrastive pairs for embeddings: two texts that belong together, among others that do not.

The first text of each pair lies in the source row, the second in the target row, under the same segment number. Both
rows go through the same encoder; a pair's two vectors should be near each other and far from those of other pairs.
"""

import numpy as np

from qkv.data.draw import Draw
from qkv.data.examples import Examples, require
from qkv.data.objectives.base import Pieces, TooLong, check_length
from qkv.data.objectives.frame import Frame
from qkv.data.objectives.pairs import proportional
from qkv.data.objectives.whole import Whole
from qkv.data.ragged import Ints
from qkv.errors import UsageError
from qkv.text import Tokenizer

SIDES = ("second", "first")  # target row, source row


class Contrast(Whole):
    """Examples with `first` and `second`, and perhaps `score`, how near to each other they should be."""

    def __init__(
        self,
        examples: Examples,
        tokenizer: Tokenizer,
        *,
        length: int,
        source_length: int | None = None,
        too_long: TooLong = "error",
        frame: Frame | None = None,
    ):
        require(examples, *SIDES)
        self.examples = examples
        self.too_long = too_long
        self.frame = frame or Frame.of(tokenizer)
        self.scored = "score" in examples.fields
        self.pad = tokenizer.roles.pad or 0
        if source_length is None:
            source_length = proportional(length, self.sizes(slice(None)))
        check_length("length", length, self.frame.size() + 1)
        check_length("source_length", source_length, self.frame.size() + 1)
        self.capacity = (length, source_length)
        self.overhead = 2 * self.frame.size()
        self.outputs = frozenset({"source", *(["scores"] if self.scored else [])})
        self.count_records()
        self._check_scores()

    def _check_scores(self) -> None:
        """Scores are compared with cosines: of larger ones, all would ask for the same."""
        if not self.scored or not len(self.examples):
            return
        scores = self.examples.gather("score", np.arange(len(self.examples)))[0]
        least, most = float(np.nanmin(scores)), float(np.nanmax(scores))
        if least < -1 or most > 1:
            raise UsageError(
                f"the scores of these pairs go from {least:g} to {most:g}, and the cosine that they are compared with "
                f"from -1 to 1: bring them there, say by dividing them by {max(-least, most):g}"
            )

    def sizes(self, examples: Ints | slice) -> Ints:
        return np.stack([self.field_lengths(side, examples) for side in SIDES], axis=1) + self.frame.size()

    def build(self, examples: Ints, draw: Draw) -> Pieces:
        counts = np.minimum(self.sizes(examples), self.capacity) - self.frame.size()  # (n, 2)
        nothing = np.zeros(len(counts), np.int64)
        (ids, lengths), (source_ids, source_lengths) = (
            self.frame.ids((self.examples.gather(side, examples, nothing, count)[0], count))
            for side, count in zip(SIDES, counts.T, strict=True)
        )
        scores = self.examples.gather("score", examples)[0] if self.scored else None
        return Pieces(lengths, ids, source_lengths=source_lengths, source_ids=source_ids, scores=scores)
