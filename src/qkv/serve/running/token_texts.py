"""The text and the bytes of single tokens, for log-probabilities."""

from contextlib import suppress

from qkv.decode.constrained.token_bytes import TokenBytes
from qkv.errors import QkvError
from qkv.text import Tokenizer


class TokenTexts:
    """The texts of a tokenizer's tokens."""

    def __init__(self, tokenizer: Tokenizer, vocab_size: int) -> None:
        self.tokenizer = tokenizer
        self._bytes: TokenBytes | None = None
        with suppress(QkvError):  # a tokenizer whose tokens have no bytes of their own
            self._bytes = TokenBytes(tokenizer, vocab_size)

    def bytes_of(self, token: int) -> bytes:
        """The bytes of a token inside a text. A special token has the bytes of its name."""
        data = self._bytes.to_bytes([token], at_start=False) if self._bytes else self.tokenizer.decode([token]).encode()
        return data or (self.tokenizer.id_to_token(token) or "").encode()

    def text_of(self, token: int) -> str:
        """The text of a token. A part of a character becomes a replacement character."""
        return self.bytes_of(token).decode("utf-8", "replace")
