"""Vocabularies: token → id."""

import json
from collections.abc import Mapping
from pathlib import Path

from qkv.errors import QkvError
from qkv.files import read_json_object

MAX_GAP = 65_536


def read_vocabulary(file: Path) -> dict[str, int]:
    """Read a vocab.json: token → id."""
    vocabulary = read_json_object(file)
    if not vocabulary:
        raise QkvError(f"{file}: the vocabulary is empty; fetch the file again")
    for token, token_id in vocabulary.items():
        if not isinstance(token_id, int) or isinstance(token_id, bool) or not 0 <= token_id < 2**31:
            raise QkvError(
                f"{file}: the token {token[:40]!r} has the id {json.dumps(token_id)[:40]}; ids must be integers >= 0"
            )
    check_ids(vocabulary, file)
    return vocabulary


def check_ids(vocabulary: Mapping[str, int], file: Path) -> None:
    """Raise an error if two tokens have the same id, or if an id is so large that tables of ids would be mostly empty.

    Vocabularies with gaps exist, but memory and time grow with the largest id.
    """
    max_id = 4 * len(vocabulary) + MAX_GAP
    tokens: dict[int, str] = {}
    for token, token_id in vocabulary.items():
        if token_id > max_id:
            raise QkvError(
                f"{file}: the token {token[:40]!r} has the id {token_id}, but a vocabulary of {len(vocabulary):,} "
                f"tokens may have ids up to {max_id:,}; fetch the file again"
            )
        if (other := tokens.setdefault(token_id, token)) != token:
            raise QkvError(
                f"{file}: the tokens {other[:40]!r} and {token[:40]!r} both have the id {token_id}, so the id has no "
                "text of its own; fetch the file again"
            )
