"""Encoder-only: every token sees every other (BERT). Learns by filling in masked words; reads texts for a head."""

from torch import Tensor, nn

from qkv.blocks import Embedding, Head, SequenceLayout, Stack, Tap, initialise, make_layout
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
        document_ids: Tensor | None = None,
        positions: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        *,
        max_documents: int = 0,
        max_document_length: int = 0,
        tap: Tap | None = None,
        selected: Tensor | None = None,
    ) -> tuple[Tensor, SequenceLayout]:
        """The vectors (B, T, C) that the head reads, and where they stand. No text takes more than `longest` places.

        `only`, (N,) or (B, Q), chooses places of the rows laid end to end, and the vectors are theirs alone, (N, C).
        """
        check_length(self.encoder.config, ids, positions, document_ids=document_ids)
        place = make_layout(ids, document_ids, positions, max_documents, max_document_length)
        x = self.embedding(ids, place.positions, token_type_ids)
        return self.encoder(x, place, tap=tap, selected=selected), place

    def forward(
        self,
        ids: Tensor,
        document_ids: Tensor | None = None,
        positions: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        *,
        max_documents: int = 0,
        tap: Tap | None = None,
    ) -> Tensor:
        """What the head makes of it: (B, T, V), or (B, V) for heads that read a whole text."""
        x, place = self.hidden(ids, document_ids, positions, token_type_ids, max_documents=max_documents, tap=tap)
        out: Tensor = self.head(x, place, max_documents)
        return out
