"""Decoder-only: every token sees those before it (GPT). Learns by predicting the next token; writes one at a time."""

import torch
from torch import Tensor, nn

from qkv.blocks import Embedding, Head, Place, SelfCache, Stack, Tap, initialise, place_of
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

    def new_cache(self, rows: int, length: int, *, static: bool = False) -> SelfCache:
        """Room for `length` tokens in each of `rows` rows; it grows when it is full, unless static."""
        return new_cache(self.decoder, rows, length, static=static)

    def hidden(
        self,
        ids: Tensor,
        segment: Tensor | None = None,
        position: Tensor | None = None,
        *,
        texts: int = 0,
        longest: int = 0,
        cache: SelfCache | None = None,
        tap: Tap | None = None,
        only: Tensor | None = None,
    ) -> tuple[Tensor, Place]:
        """The vectors (B, T, C) that the head reads, and where they stand. No text takes more than `longest` places.

        `only`, (N,) or (B, Q), chooses places of the rows laid end to end, and the vectors are theirs alone, (N, C).
        """
        check_length(self.decoder.config, ids, position, cache, segment)
        if cache is not None and position is None:
            position = cache.next_positions(ids, segment)
        place = place_of(ids, segment, position, texts, longest)
        x = self.embedding(ids, place.position)
        return self.decoder(x, place, cache, tap=tap, only=only), place

    def forward(
        self,
        ids: Tensor,
        segment: Tensor | None = None,
        position: Tensor | None = None,
        *,
        texts: int = 0,
        cache: SelfCache | None = None,
        tap: Tap | None = None,
    ) -> Tensor:
        """What the head makes of it: (B, T, V), or (B, V) for heads that read a whole text."""
        x, place = self.hidden(ids, segment, position, texts=texts, cache=cache, tap=tap)
        out: Tensor = self.head(x, place, texts)
        return out


def new_cache(stack: Stack, rows: int, length: int, *, static: bool) -> SelfCache:
    """A self cache that fits a stack, on its device and in its type."""
    config = stack.config
    if static and config.limited and length > config.max_positions:
        raise UsageError(
            f"a static cache of {length} slots is longer than the {config.max_positions} positions that this model has"
        )
    weight = next(stack.parameters())
    dtype = weight.dtype if weight.dtype.is_floating_point else torch.float32
    return SelfCache(
        config.layers,
        rows,
        config.kv_heads,
        length,
        config.head_width,
        device=weight.device,
        dtype=dtype,
        static=static,
    )
