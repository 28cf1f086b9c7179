"""Texts with more tokens than a model can read: refuse them, or truncate them and say so.

`too_long` is the option that decides. Its choices depend on the task; "error" is one of them.
"""

import logging
from collections.abc import Sequence
from typing import Any

import numpy as np

from qkv.errors import UsageError
from qkv.models import Config
from qkv.tasks.run.example_batches import TextOrPair, as_tuple, max_sequence_length
from qkv.values import find_fields

log = logging.getLogger("qkv")

MAX_SHOWN_CHARS = 40  # characters of a text that an error message shows


def describe_choices(options: Any) -> str:
    """The end of an error message: the values of the option `too_long` that accept a long text."""
    choices = next((one.choices for one in find_fields(type(options)) if one.name == "too_long"), ()) if options else ()
    others = " or ".join(f'"{choice}"' for choice in choices if choice != "error")
    return f", or set too_long to {others}" if others else ""


def check_text_lengths(texts: Sequence[TextOrPair], lengths: np.ndarray, max_length: int, options: Any = None) -> None:
    """Raise an error that names the first text with more than `max_length` tokens, and the choices of `too_long`.

    The options have a field `too_long`.
    """
    too_long = (lengths > max_length).nonzero()[0]
    if not len(too_long):
        return
    first = int(too_long[0])
    text = " ‖ ".join(as_tuple(texts[first]))
    start = repr(text[:MAX_SHOWN_CHARS]) + ("…" if len(text) > MAX_SHOWN_CHARS else "")
    which = f"{len(too_long):,} of {len(texts):,} texts are" if len(texts) > 1 else "the text is"
    raise UsageError(
        f"{which} longer than the {max_length:,} tokens that this model can read: text {first + 1:,}, which begins "
        f"with {start}, has {lengths[first]:,} with special tokens; shorten {'them' if len(too_long) > 1 else 'it'}"
        f"{describe_choices(options)}"
    )


def handle_long_texts(texts: Sequence[TextOrPair], lengths: np.ndarray, config: Config, options: Any) -> None:
    """Raise an error if a text is too long, or, if `options.too_long` is not "error", log how many were truncated."""
    if options.too_long == "error":
        return check_text_lengths(texts, lengths, max_sequence_length(config), options)
    notes: list[str] = []
    add_truncation_note(notes, lengths, config)
    for note in notes:
        log.warning(note)


def add_truncation_note(notes: list[str], lengths: np.ndarray, config: Config) -> None:
    """Add a note that counts the texts that were truncated."""
    max_length = max_sequence_length(config)
    if truncated := int((lengths > max_length).sum()):
        notes.append(f"{truncated:,} of {len(lengths):,} texts were truncated to the {max_length:,} tokens that fit")
