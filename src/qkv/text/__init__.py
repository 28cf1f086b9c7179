"""Text ⇄ token ids: tokenizers of every kind, trained or loaded, with special tokens by role."""

from qkv.text.special_tokens import SpecialTokens
from qkv.text.stream_decoder import StreamDecoder
from qkv.text.tokenizer import Tokenizer

__all__ = ["SpecialTokens", "StreamDecoder", "Tokenizer"]
