"""Text ⇄ ids: tokenizers of every kind, trained or loaded, with special tokens by role."""

from qkv.text.roles import Roles
from qkv.text.stream import StreamDecoder
from qkv.text.tokenizer import Tokenizer

__all__ = ["Roles", "StreamDecoder", "Tokenizer"]
