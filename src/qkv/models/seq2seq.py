"""Encoder-decoder (the 2017 Transformer, T5, BART): one stack reads the source, the other writes the target.

The encoder runs once; the decoder attends to its output through cross-attention.
"""

from torch import Tensor, nn

from qkv.blocks import CrossCache, Embedding, EncoderMemory, Head, KernelHints, SelfCache, Tap, make_stack
from qkv.blocks.mask import SequenceLayout, make_layout
from qkv.models.config import Config
from qkv.models.decoder import new_cache
from qkv.models.runtime.length import check_length


class Seq2Seq(nn.Module):
    """source → encoder → memory; target and memory → decoder → head.

    A target document attends to the source document that has the same document id.
    """

    def __init__(self, config: Config) -> None:
        super().__init__()
        assert config.encoder is not None
        assert config.decoder is not None
        self.config = config
        self.source_embedding = Embedding(config.encoder)
        self.encoder = make_stack(config.encoder, name="encoder", causal=False)
        self.target_embedding = Embedding(config.decoder)
        if config.share_embeddings:
            self.target_embedding.token = self.source_embedding.token
        self.decoder = make_stack(config.decoder, name="decoder", causal=True, cross=True)
        self.head = Head(config.head, config.decoder, self.target_embedding.token)

    def new_cache(self, batch_size: int, capacity: int) -> SelfCache:
        """Return an empty cache for `capacity` target tokens. Each beam of a source counts towards `batch_size`."""
        return new_cache(self.decoder, batch_size, capacity)

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
        """Run the encoder on the source (B, S); parameters as in `Encoder`."""
        check_length(self.encoder.config, source, positions, document_ids=document_ids)
        layout = make_layout(source, document_ids, positions)
        hints = KernelHints(max_documents, max_document_length, is_default=document_ids is None and positions is None)
        x = self.source_embedding(source, layout.positions, token_type_ids)
        return EncoderMemory(self.encoder(x, layout, tap=tap, hints=hints), layout, hints)

    def build_cross_cache(self, memory: EncoderMemory) -> CrossCache:
        """Project the encoder's output to the keys and values of every decoder layer, once for all decoding steps."""
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
        """Return the decoder's hidden states (B, T, C), and their layout."""
        if target.shape[0] % memory.batch_size:
            raise ValueError(
                f"a batch of {target.shape[0]} targets for {memory.batch_size} sources: it must be a multiple of them"
            )
        check_length(self.decoder.config, target, positions, cache, document_ids)
        if cache is not None and positions is None:
            positions = cache.next_positions(target, document_ids)
        layout = make_layout(target, document_ids, positions)
        hints = KernelHints(max_documents, max_document_length, is_default=document_ids is None and positions is None)
        x = self.target_embedding(target, layout.positions)
        return self.decoder(x, layout, cache, memory, tap, hints=hints), layout

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
        """Return the head's output for `target` (B, T). With a cache, pass only the tokens that are new."""
        x, layout = self.hidden(
            target, memory, document_ids, positions, max_documents=max_documents, cache=cache, tap=tap
        )
        out: Tensor = self.head(x, layout, max_documents)
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
        """Return the head's output (B, T, V) at all target positions (teacher forcing)."""
        memory = self.encode(source, source_document_ids, source_positions, max_documents=max_documents, tap=tap)
        return self.decode(target, memory, target_document_ids, target_positions, max_documents=max_documents, tap=tap)
