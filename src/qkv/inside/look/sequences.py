"""The beginning of every document: its version, its heading, its tokens, and which of them form a word."""

from collections.abc import Mapping, Sequence
from typing import Any

from qkv.inside.tokens import TokenList
from qkv.page import DOCUMENT_VERSION, WEIGHT_ERROR
from qkv.text import Tokenizer

SEQUENCE_LABELS = {"encoder": "Source", "decoder": "Target"}
MAX_TITLE = 120  # characters


def start_document(
    title: str, subtitle: str, tokens: Mapping[str, TokenList], words: Mapping[str, Sequence[int]]
) -> dict[str, Any]:
    """A document with a view of its tokens only. `words` has the word index of each token."""
    title = " ".join(title.split())
    return {
        "schema": "qkv.look",
        "version": DOCUMENT_VERSION,
        "title": title if len(title) <= MAX_TITLE else title[: MAX_TITLE - 1] + "…",
        "subtitle": subtitle,
        "notes": [],
        "sequences": {
            name: {
                "label": SEQUENCE_LABELS[name] if len(tokens) > 1 else "Text",
                "ids": list(sequence.ids),
                "texts": list(sequence.texts),
                "special": list(sequence.special),
                "words": list(words[name]),
            }
            for name, sequence in tokens.items()
        },
        "rounding": {"pattern": WEIGHT_ERROR},
        "views": ["tokens"],
        "footer": "Made by qkv look.",
    }


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
