"""Which tokens form a word: for alignments between words instead of subwords or characters."""

from collections.abc import Sequence

from qkv.inside.tokens import TokenList
from qkv.text import Tokenizer


def group_words(tokens: TokenList, tokenizer: Tokenizer | None) -> list[int]:
    """The word index of each token, counted from 0. A special token is a word.

    A word begins after whitespace. A WordPiece token is a word unless it begins with ##.
    """
    marks_continuations = tokenizer is not None and type(tokenizer.backend.model).__name__ in ("WordPiece", "WordLevel")
    words: list[int] = []
    for i, text in enumerate(tokens.texts):
        starts = i == 0 or tokens.special[i] or tokens.special[i - 1]
        if not starts:
            starts = not text.startswith("##") if marks_continuations else _starts_word(tokens.texts, i)
        words.append((words[-1] + starts) if words else 0)
    return words


def _starts_word(texts: Sequence[str], i: int) -> bool:
    """Whether text i begins with whitespace, or the text before it ends with whitespace and is not only whitespace."""
    before = texts[i - 1]
    return texts[i][:1].isspace() or (before[-1:].isspace() and not before.isspace())
