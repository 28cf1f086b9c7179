"""The config of the front end of words, which `word_embedding.py` implements."""

from dataclasses import dataclass
from typing import Annotated, ClassVar

from qkv.blocks.front_ends import FrontEndConfig, FrontEndKind
from qkv.lazy import lazy_function
from qkv.values import Limits


@dataclass(frozen=True, kw_only=True)
class WordsConfig(FrontEndConfig):
    """A payload vector has the `features` of a word, as hashes. Each of them is looked up in a table."""

    kind: ClassVar[str] = "words"
    max_value: ClassVar[float] = 2**31
    rows: Annotated[int, Limits(1, 2**24)] = 4000  # of each table
    width: Annotated[int, Limits(1, 2**16)] = 48  # of each table
    dropout: Annotated[float, Limits(0, below=1)] = 0.1  # the probability that a word loses a feature, in training

    def length(self, size: tuple[int, int]) -> int:
        """Each word has one placeholder."""
        return size[0] * size[1]


WORDS = FrontEndKind(WordsConfig, lazy_function("qkv.blocks.word_embedding:WordEmbedding"))
