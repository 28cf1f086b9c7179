"""A model that turns passages and queries into unit vectors."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from qkv.api import Model, load
from qkv.arguments import describe_value
from qkv.errors import QkvError, UsageError
from qkv.search.vectors import normalize
from qkv.tasks.run.example_batches import build_unlabelled_examples
from qkv.tasks.text_model import TextModel

FINGERPRINT_TEXT = "The quick brown fox jumps over the lazy dog, 0123456789 times."
"""Its vector is stored in an index as the fingerprint of the model that built the index."""
MIN_FINGERPRINT_COSINE = 0.999  # the same model on another device or in another dtype reaches it
MIN_PASSAGE_TOKENS = 8
BATCHES_PER_CHUNK = 32
"""A chunk has several batches, so that a batch has passages of similar length."""


class Embedder:
    """A `Model` and its pooling. The model may be given by its folder or hub id."""

    def __init__(
        self,
        model: Model | str | Path,
        pooling: str | None = None,
        device: torch.device | str = "cpu",
        batch_size: int = 32,
    ) -> None:
        if batch_size < 1:
            raise UsageError(f"batch_size = {batch_size}: a batch needs at least 1 passage; raise it")
        if not isinstance(model, Model | str | Path):
            raise UsageError(f"model must be a folder, a hub id or a qkv.Model, got {describe_value(model)}")
        self.name = "" if isinstance(model, Model) else _absolute_name(model)
        self.model = model if isinstance(model, Model) else load(model, device=device)
        self.pooling, self.batch_size = pooling, batch_size
        if self.model.tokenizer is None:
            raise QkvError(f"{self.name or 'the model'}: no tokenizer, so it cannot read text; save one with the model")
        self.tokenizer = self.model.tokenizer
        try:
            self.fingerprint = self.embed([FINGERPRINT_TEXT])[0]
        except UsageError as error:
            raise UsageError(f"{self.name or 'this model'} cannot embed passages: {error}") from None
        if pooling is None:
            text_model = TextModel(self.model.network, self.tokenizer, self.model.config)
            self.num_special_tokens = int(build_unlabelled_examples(text_model, [("a",)]).num_special_tokens)
        else:
            self.num_special_tokens = len(self.tokenizer.encode(""))

    @property
    def device(self) -> torch.device:
        """The device of the model."""
        return self.model.device

    def count_tokens(self, texts: Sequence[str]) -> list[int]:
        """The number of tokens of each text, without special tokens."""
        return [len(ids) for ids in self.tokenizer.encode_batch(texts)]

    def max_passage_tokens(self, max_tokens: int) -> int:
        """The token budget of a passage: `max_tokens`, or the model's limit, without special tokens."""
        budget = min(max_tokens, self.model.config.stack.max_positions) - self.num_special_tokens
        if budget < MIN_PASSAGE_TOKENS:
            raise UsageError(
                f"max_tokens = {max_tokens} leaves {budget} tokens for a passage, but a passage needs at least "
                f"{MIN_PASSAGE_TOKENS}: the model reads at most {self.model.config.stack.max_positions} tokens, "
                f"{self.num_special_tokens} of them special; raise max_tokens"
            )
        return budget

    def embed(self, texts: Sequence[str]) -> np.ndarray:
        """The unit vectors (N, C) of texts that fit into the model, in float32."""
        pooling: Any = self.pooling  # `embed` checks it
        vectors = self.model.embed(list(texts), pooling=pooling, batch_size=self.batch_size)
        found = normalize(vectors.float().cpu().numpy())
        if not np.isfinite(found).all():
            first = int((~np.isfinite(found).all(axis=1)).nonzero()[0][0])
            raise QkvError(
                f"the vector of the text {texts[first][:60]!r} has NaN or infinite values; check the model's weights"
            )
        return found

    def embed_queries(self, queries: Sequence[str]) -> np.ndarray:
        """Unit vectors of queries. A query that is too long is an error."""
        limit = self.model.config.stack.max_positions - self.num_special_tokens
        for query, count in zip(queries, self.count_tokens(queries), strict=True):
            if count > limit:
                raise UsageError(
                    f"the query that begins with {query[:40]!r} has {count:,} tokens, but the model reads at most "
                    f'{limit:,}; shorten it, or search with method "bm25"'
                )
        return self.embed(queries)

    def check_same_model(self, fingerprint: Sequence[float], subject: str, remedy: str) -> None:
        """Raise an error unless this model has the fingerprint that is stored in an index."""
        same_width = len(fingerprint) == len(self.fingerprint)
        cosine = float(np.dot(self.fingerprint, np.array(fingerprint, np.float32))) if same_width else 0.0
        if cosine < MIN_FINGERPRINT_COSINE:
            why = (
                f"the vectors of a test sentence have cosine {cosine:.3f}" if same_width else "the vector widths differ"
            )
            raise UsageError(
                f"{subject}: built with a different model than {self.name or 'this one'} ({why}); {remedy}"
            )


def _absolute_name(model: str | Path) -> str:
    """The absolute path of a model folder, or a hub id as it is."""
    path = Path(model).expanduser()
    return str(path.absolute()) if path.exists() else str(model)
