"""Encoder-only (BERT): every token attends to all tokens. Pretrained by predicting masked tokens."""

from qkv.blocks import Embedding, Head, Stack, make_stack
from qkv.models.config import Config
from qkv.models.network import Network


class Encoder(Network):
    """inputs → embedding → stack → head."""

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        assert config.encoder is not None
        self.embedding = Embedding(config.encoder)
        self.encoder = make_stack(config.encoder, name="encoder", causal=False)
        self.head = Head(config.head, config.encoder, self.embedding.token)

    @property
    def stacks(self) -> dict[str, Stack]:
        """The encoder."""
        return {"encoder": self.encoder}

    @property
    def embeddings(self) -> dict[str, Embedding]:
        """The embedding of the encoder."""
        return {"encoder": self.embedding}
