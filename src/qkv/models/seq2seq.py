"""Encoder-decoder (the 2017 Transformer, T5, BART): one stack reads the source, the other writes the target.

The encoder runs once; the decoder attends to its output through cross-attention.
"""

from qkv.blocks import Embedding, Head, Stack, make_stack
from qkv.models.config import Config
from qkv.models.network import Network


class Seq2Seq(Network):
    """source → encoder → memory; target and memory → decoder → head."""

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        assert config.encoder is not None
        assert config.decoder is not None
        self.source_embedding = Embedding(config.encoder)
        self.encoder = make_stack(config.encoder, name="encoder", causal=False)
        self.target_embedding = Embedding(config.decoder)
        if config.share_embeddings:
            self.target_embedding.token = self.source_embedding.token
        self.decoder = make_stack(config.decoder, name="decoder", causal=True, cross=True)
        self.head = Head(config.head, config.decoder, self.target_embedding.token)

    @property
    def stacks(self) -> dict[str, Stack]:
        """The encoder, then the decoder."""
        return {"encoder": self.encoder, "decoder": self.decoder}

    @property
    def embeddings(self) -> dict[str, Embedding]:
        """The embeddings of source and target."""
        return {"encoder": self.source_embedding, "decoder": self.target_embedding}
