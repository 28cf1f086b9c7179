"""Decoder-only: every token sees those before it (GPT). Learns by predicting the next token; writes one at a time."""

import torch
from torch import Tensor, nn

from qkv.blocks import Embedding, Head, SelfCache, SequenceLayout, Stack, Tap, initialise, make_layout
from qkv.errors import UsageError
from qkv.models.config import Config
from qkv.models.length import check_length


class Decoder(nn.Module):
    """ids → embedding → causal stack → head. `segment` and `texts` are as in `Encoder`."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        assert config.decoder is not None
        self.config = config
        self.embedding = Embedding(config.decoder)
        self.decoder = Stack(config.decoder, name="decoder", causal=True)
        self.head = Head(config.head, config.decoder, self.embedding.token)

    def initialise(self) -> None:
        """Draw fresh weights."""
        for part in (self.head, self.embedding, self.decoder):
            initialise(part, self.decoder.config)

    def new_cache(self, batch_size: int, capacity: int, *, static: bool = False) -> SelfCache:
        """Room for `length` tokens in each of `rows` rows; it grows when it is full, unless static."""
        return new_cache(self.decoder, batch_size, capacity, static=static)

    def hidden(
        self,
        ids: Tensor,
        document_ids: Tensor | None = None,
        positions: Tensor | None = None,
        *,
        max_documents: int = 0,
        max_document_length: int = 0,
        cache: SelfCache | None = None,
        tap: Tap | None = None,
        selected: Tensor | None = None,
    ) -> tuple[Tensor, SequenceLayout]:
        """The vectors (B, T, C) that the head reads, and where they stand. No text takes more than `longest` places.

        `only`, (N,) or (B, Q), chooses places of the rows laid end to end, and the vectors are theirs alone, (N, C).
        """
        check_length(self.decoder.config, ids, positions, cache, document_ids)
        if cache is not None and positions is None:
            positions = cache.next_positions(ids, document_ids)
        place = make_layout(ids, document_ids, positions, max_documents, max_document_length)
        x = self.embedding(ids, place.positions)
        return self.decoder(x, place, cache, tap=tap, selected=selected), place

    def forward(
        self,
        ids: Tensor,
        document_ids: Tensor | None = None,
        positions: Tensor | None = None,
        *,
        max_documents: int = 0,
        cache: SelfCache | None = None,
        tap: Tap | None = None,
    ) -> Tensor:
        """What the head makes of it: (B, T, V), or (B, V) for heads that read a whole text."""
        x, place = self.hidden(ids, document_ids, positions, max_documents=max_documents, cache=cache, tap=tap)
        out: Tensor = self.head(x, place, max_documents)
        return out


def new_cache(stack: Stack, batch_size: int, capacity: int, *, static: bool) -> SelfCache:
    """A self cache that fits a stack, on its device and in its type."""
    config = stack.config
    if static and config.has_max_positions and capacity > config.max_positions:
        raise UsageError(
            f"a static cache of {capacity} slots is longer than the {config.max_positions} positions that this model has"
        )
    weight = next(stack.parameters())
    dtype = weight.dtype if weight.dtype.is_floating_point else torch.float32
    return SelfCache(
        config.layers,
        batch_size,
        config.kv_heads,
        capacity,
        config.head_dim,
        device=weight.device,
        dtype=dtype,
        static=static,
    )
