"""Decoder-only (GPT): every token attends to itself and to the tokens before it. Trained to predict the next token."""

from qkv.blocks import Embedding, Head, Stack, make_stack
from qkv.models.config import Config
from qkv.models.network import Network


class Decoder(Network):
    """inputs → embedding → causal stack → head."""

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        assert config.decoder is not None
        self.embedding = Embedding(config.decoder)
        self.decoder = make_stack(config.decoder, name="decoder", causal=True)
        self.head = Head(config.head, config.decoder, self.embedding.token)

    @property
    def stacks(self) -> dict[str, Stack]:
        """The decoder."""
        return {"decoder": self.decoder}

    @property
    def embeddings(self) -> dict[str, Embedding]:
        """The embedding of the decoder."""
        return {"decoder": self.embedding}
