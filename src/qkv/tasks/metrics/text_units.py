"""The units of long texts that the bootstrap resamples: documents or, if there are few, blocks of their characters.

Tokens are assigned to blocks by their position in the document, so that models with different tokenizers have the same
units and can be compared.
"""

from collections.abc import Sequence

import numpy as np

MIN_DOCUMENTS = 30  # with fewer documents, the units are blocks
BLOCK_CHARS = 1000  # the approximate length of a block


class TextUnits:
    """Numbers the units of texts. `chars` and `num_bytes` are the sizes of the units.

    >>> units = TextUnits(["a" * 4000, "b" * 500])
    >>> units.chars.tolist(), units.find(np.array([0, 0, 1]), np.array([0.1, 0.99, 0.5])).tolist()
    ([1000.0, 1000.0, 1000.0, 1000.0, 500.0], [0, 3, 4])
    """

    def __init__(self, texts: Sequence[str]) -> None:
        chars = np.array([len(text) for text in texts], np.int64)
        num_bytes = np.array([len(text.encode("utf-8", "surrogatepass")) for text in texts], np.int64)
        is_split = len(texts) < MIN_DOCUMENTS
        self._blocks = np.maximum(1, chars // BLOCK_CHARS) if is_split else np.ones(len(texts), np.int64)
        self._starts = np.cumsum(self._blocks) - self._blocks
        self.num_units = int(self._blocks.sum())
        self.chars, self.num_bytes = (np.repeat(size / self._blocks, self._blocks) for size in (chars, num_bytes))

    def find(self, documents: np.ndarray, fractions: np.ndarray) -> np.ndarray:
        """The units of tokens, given their documents and their relative positions in them, from 0 to 1."""
        blocks = self._blocks[documents]
        found: np.ndarray = self._starts[documents] + np.minimum((fractions * blocks).astype(np.int64), blocks - 1)
        return found
