"""The kinds of tokenizers that can be trained: an open table.

register_tokenizer("syllables", train_syllables)       # then tokenizer.kind = "syllables" works in a recipe
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from qkv.tables import OpenTable

TrainTokenizer = Callable[[Iterator[str], Any], Any]
"""A function of the training texts and `text.train.TrainerOptions` that returns a `tokenizers.Tokenizer`."""


@dataclass(frozen=True)
class TokenizerKind:
    """How a kind of tokenizer is trained, and whether it can encode any text, so that it needs no unk token."""

    train: TrainTokenizer
    is_byte_level: bool = False
    reads_texts: bool = True  # False: it learns no tokens from texts

    @property
    def min_tokens(self) -> int:
        """The number of tokens that it has at least, besides special tokens."""
        return 256 if self.is_byte_level else int(self.reads_texts)


TOKENIZER_KINDS = OpenTable[TokenizerKind](
    "tokenizer",
    lazy={
        "byte-bpe": "qkv.text.train:BYTE_BPE",
        "bpe": "qkv.text.train:BPE",
        "wordpiece": "qkv.text.train:WORDPIECE",
        "unigram": "qkv.text.train:UNIGRAM",
        "char": "qkv.text.train:CHAR",
        "byte": "qkv.text.train:BYTE",
        "word": "qkv.text.train:WORD",
        "special": "qkv.text.train:SPECIAL",
        "hash": "qkv.text.train:HASH",
    },
)


def register_tokenizer(name: str, train: TrainTokenizer, *, is_byte_level: bool = False, replace: bool = False) -> None:
    """Add a kind of tokenizer."""
    TOKENIZER_KINDS.register(name, TokenizerKind(train, is_byte_level), replace=replace)
