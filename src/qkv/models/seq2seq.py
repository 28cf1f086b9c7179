"""Encoder and decoder: one reads the source, the other writes the target, looking at the source as it goes.

The 2017 Transformer, T5 and BART. The encoder runs once; the decoder sees its output through cross-attention.
"""

from torch import Tensor, nn

from qkv.blocks import (
    CrossCache,
    Embedding,
    Head,
    Memory,
    Place,
    SelfCache,
    Stack,
    Tap,
    initialise,
    place_of,
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
        if config.shared_embedding:
            self.target_embedding.token = self.source_embedding.token
        self.decoder = Stack(config.decoder, name="decoder", causal=True, cross=True)
        self.head = Head(config.head, config.decoder, self.target_embedding.token)

    def initialise(self) -> None:
        """Draw fresh weights."""
        for part in (self.head, self.target_embedding, self.decoder):
            initialise(part, self.decoder.config)
        for part in (self.source_embedding, self.encoder):
            initialise(part, self.encoder.config)

    def new_cache(self, rows: int, length: int, *, static: bool = False) -> SelfCache:
        """Room for `length` target tokens in each of `rows` rows (a source may have several: its beams)."""
        return new_cache(self.decoder, rows, length, static=static)

    def encode(
        self,
        source: Tensor,
        segment: Tensor | None = None,
        position: Tensor | None = None,
        types: Tensor | None = None,
        *,
        texts: int = 0,
        longest: int = 0,
        tap: Tap | None = None,
    ) -> Memory:
        """Read the source (B, S) once. `types`, where the encoder has them, is as in `Encoder`."""
        check_length(self.encoder.config, source, position, segment=segment)
        place = place_of(source, segment, position, texts, longest)
        x = self.source_embedding(source, place.position, types)
        return Memory(self.encoder(x, place, tap=tap), place)

    def remember(self, memory: Memory) -> CrossCache:
        """The memory as every decoder layer's keys and values, projected once for a whole decoding."""
        return self.decoder.remember(memory.vectors, memory.place)

    def hidden(
        self,
        target: Tensor,
        memory: Memory | CrossCache,
        segment: Tensor | None = None,
        position: Tensor | None = None,
        *,
        texts: int = 0,
        longest: int = 0,
        cache: SelfCache | None = None,
        tap: Tap | None = None,
    ) -> tuple[Tensor, Place]:
        """The vectors (B, T, C) that the head reads, and where they stand. No text takes more than `longest` places."""
        if target.shape[0] % memory.rows:
            raise ValueError(f"{target.shape[0]} target rows cannot share {memory.rows} sources evenly")
        check_length(self.decoder.config, target, position, cache, segment)
        if cache is not None and position is None:
            position = cache.next_positions(target, segment)
        place = place_of(target, segment, position, texts, longest)
        x = self.target_embedding(target, place.position)
        return self.decoder(x, place, cache, memory, tap), place

    def decode(
        self,
        target: Tensor,
        memory: Memory | CrossCache,
        segment: Tensor | None = None,
        position: Tensor | None = None,
        *,
        texts: int = 0,
        cache: SelfCache | None = None,
        tap: Tap | None = None,
    ) -> Tensor:
        """Target tokens (B, T), or with a cache those that are new, against a source that was read before."""
        x, place = self.hidden(target, memory, segment, position, texts=texts, cache=cache, tap=tap)
        out: Tensor = self.head(x, place, texts)
        return out

    def forward(
        self,
        source: Tensor,
        target: Tensor,
        source_segment: Tensor | None = None,
        target_segment: Tensor | None = None,
        source_position: Tensor | None = None,
        target_position: Tensor | None = None,
        *,
        texts: int = 0,
        tap: Tap | None = None,
    ) -> Tensor:
        """Teacher forcing: all target positions at once, (B, T, V)."""
        memory = self.encode(source, source_segment, source_position, texts=texts, tap=tap)
        return self.decode(target, memory, target_segment, target_position, texts=texts, tap=tap)
