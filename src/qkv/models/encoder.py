"""Encoder-only: every token sees every other (BERT). Learns by filling in masked words; reads texts for a head."""

from torch import Tensor, nn

from qkv.blocks import Embedding, Head, Place, Stack, Tap, initialise, place_of
from qkv.models.config import Config
from qkv.models.length import check_length


class Encoder(nn.Module):
    """ids → embedding → stack → head.

    `segment` (B, T) numbers the texts of each row from 1, 0 is padding on any side; None: no padding, one text a row.
    `texts` says how many texts a row packs at most: heads that read whole texts then answer (B, texts, …).
    """

    def __init__(self, config: Config) -> None:
        super().__init__()
        assert config.encoder is not None
        self.config = config
        self.embedding = Embedding(config.encoder)
        self.encoder = Stack(config.encoder, name="encoder", causal=False)
        self.head = Head(config.head, config.encoder, self.embedding.token)

    def initialise(self) -> None:
        """Draw fresh weights."""
        for part in (self.head, self.embedding, self.encoder):
            initialise(part, self.encoder.config)

    def hidden(
        self,
        ids: Tensor,
        segment: Tensor | None = None,
        position: Tensor | None = None,
        types: Tensor | None = None,
        *,
        texts: int = 0,
        longest: int = 0,
        tap: Tap | None = None,
        only: Tensor | None = None,
    ) -> tuple[Tensor, Place]:
        """The vectors (B, T, C) that the head reads, and where they stand. No text takes more than `longest` places.

        `only`, (N,) or (B, Q), chooses places of the rows laid end to end, and the vectors are theirs alone, (N, C).
        """
        check_length(self.encoder.config, ids, position, segment=segment)
        place = place_of(ids, segment, position, texts, longest)
        x = self.embedding(ids, place.position, types)
        return self.encoder(x, place, tap=tap, only=only), place

    def forward(
        self,
        ids: Tensor,
        segment: Tensor | None = None,
        position: Tensor | None = None,
        types: Tensor | None = None,
        *,
        texts: int = 0,
        tap: Tap | None = None,
    ) -> Tensor:
        """What the head makes of it: (B, T, V), or (B, V) for heads that read a whole text."""
        x, place = self.hidden(ids, segment, position, types, texts=texts, tap=tap)
        out: Tensor = self.head(x, place, texts)
        return out
