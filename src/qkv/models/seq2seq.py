"""Encoder and decoder: one reads the source, the other writes the target, looking at the source as it goes.

The 2017 Transformer, T5 and BART. The encoder runs once; the decoder sees its output through cross-attention.
"""

from torch import Tensor, nn

from qkv.blocks import (
    CrossCache,
    Embedding,
    EncoderMemory,
    Head,
    SelfCache,
    SequenceLayout,
    Stack,
    Tap,
    initialise,
    make_layout,
)
from qkv.models.config import Config
from qkv.models.decoder import new_cache
from qkv.models.length import check_length


class Seq2Seq(nn.Module):
    """source → encoder → memory; target + memory → decoder → head.

    Source and target rows share segment numbers: text e of a source row belongs to text e of the target row.
    """

    def __init__(self, config: Config) -> None:
        super().__init__()
        assert config.encoder is not None
        assert config.decoder is not None
        self.config = config
        self.source_embedding = Embedding(config.encoder)
        self.encoder = Stack(config.encoder, name="encoder", causal=False)
        self.target_embedding = Embedding(config.decoder)
        if config.share_embeddings:
            self.target_embedding.token = self.source_embedding.token
        self.decoder = Stack(config.decoder, name="decoder", causal=True, cross=True)
        self.head = Head(config.head, config.decoder, self.target_embedding.token)

    def initialise(self) -> None:
        """Draw fresh weights."""
        for part in (self.head, self.target_embedding, self.decoder):
            initialise(part, self.decoder.config)
        for part in (self.source_embedding, self.encoder):
            initialise(part, self.encoder.config)

    def new_cache(self, batch_size: int, capacity: int, *, static: bool = False) -> SelfCache:
        """Room for `length` target tokens in each of `rows` rows (a source may have several: its beams)."""
        return new_cache(self.decoder, batch_size, capacity, static=static)

    def encode(
        self,
        source: Tensor,
        document_ids: Tensor | None = None,
        positions: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        *,
        max_documents: int = 0,
        max_document_length: int = 0,
        tap: Tap | None = None,
    ) -> EncoderMemory:
        """Read the source (B, S) once. `types`, where the encoder has them, is as in `Encoder`."""
        check_length(self.encoder.config, source, positions, document_ids=document_ids)
        place = make_layout(source, document_ids, positions, max_documents, max_document_length)
        x = self.source_embedding(source, place.positions, token_type_ids)
        return EncoderMemory(self.encoder(x, place, tap=tap), place)

    def build_cross_cache(self, memory: EncoderMemory) -> CrossCache:
        """The memory as every decoder layer's keys and values, projected once for a whole decoding."""
        return self.decoder.build_cross_cache(memory.vectors, memory.layout)

    def hidden(
        self,
        target: Tensor,
        memory: EncoderMemory | CrossCache,
        document_ids: Tensor | None = None,
        positions: Tensor | None = None,
        *,
        max_documents: int = 0,
        max_document_length: int = 0,
        cache: SelfCache | None = None,
        tap: Tap | None = None,
    ) -> tuple[Tensor, SequenceLayout]:
        """The vectors (B, T, C) that the head reads, and where they stand. No text takes more than `longest` places."""
        if target.shape[0] % memory.batch_size:
            raise ValueError(f"{target.shape[0]} target rows cannot share {memory.batch_size} sources evenly")
        check_length(self.decoder.config, target, positions, cache, document_ids)
        if cache is not None and positions is None:
            positions = cache.next_positions(target, document_ids)
        place = make_layout(target, document_ids, positions, max_documents, max_document_length)
        x = self.target_embedding(target, place.positions)
        return self.decoder(x, place, cache, memory, tap), place

    def decode(
        self,
        target: Tensor,
        memory: EncoderMemory | CrossCache,
        document_ids: Tensor | None = None,
        positions: Tensor | None = None,
        *,
        max_documents: int = 0,
        cache: SelfCache | None = None,
        tap: Tap | None = None,
    ) -> Tensor:
        """Target tokens (B, T), or with a cache those that are new, against a source that was read before."""
        x, place = self.hidden(
            target, memory, document_ids, positions, max_documents=max_documents, cache=cache, tap=tap
        )
        out: Tensor = self.head(x, place, max_documents)
        return out

    def forward(
        self,
        source: Tensor,
        target: Tensor,
        source_document_ids: Tensor | None = None,
        target_document_ids: Tensor | None = None,
        source_positions: Tensor | None = None,
        target_positions: Tensor | None = None,
        *,
        max_documents: int = 0,
        tap: Tap | None = None,
    ) -> Tensor:
        """Teacher forcing: all target positions at once, (B, T, V)."""
        memory = self.encode(source, source_document_ids, source_positions, max_documents=max_documents, tap=tap)
        return self.decode(target, memory, target_document_ids, target_positions, max_documents=max_documents, tap=tap)
