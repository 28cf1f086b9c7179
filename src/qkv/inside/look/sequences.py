"""The beginning of every document: its version, its heading and the tokens of its sequences."""

from collections.abc import Mapping, Sequence
from typing import Any

from qkv.inside.tokens import TokenList
from qkv.page import DOCUMENT_VERSION, WEIGHT_ERROR

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
