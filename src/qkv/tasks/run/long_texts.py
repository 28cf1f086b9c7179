"""Texts with more tokens than a model can read: refuse them, or truncate them and say so.

`too_long` is the option that decides. Its choices depend on the task; "error" is one of them.
"""

import logging
from collections.abc import Sequence

import numpy as np

from qkv.errors import UsageError, suggest_name
from qkv.models import Config
from qkv.tasks.run.example_batches import TextOrPair, as_tuple, max_sequence_length

log = logging.getLogger("qkv")

MAX_SHOWN_CHARS = 40  # characters of a text that an error message shows


def check_too_long(too_long: str, choices: Sequence[str]) -> None:
    """Raise an error if the option `too_long` is not one of the task's choices."""
    if too_long not in choices:
        raise UsageError(f"too_long = {too_long!r} is unknown; {suggest_name(str(too_long), choices)}")


def describe_choices(choices: Sequence[str]) -> str:
    """The end of an error message: what can be done with a long text, other than to refuse it.

    >>> describe_choices(("error", "split", "truncate"))
    ', or set too_long to "split" or "truncate"'
    """
    others = " or ".join(f'"{choice}"' for choice in choices if choice != "error")
    return f", or set too_long to {others}" if others else ""


def check_text_lengths(
    texts: Sequence[TextOrPair], lengths: np.ndarray, max_length: int, choices: Sequence[str] = ()
) -> None:
    """Raise an error that names the first text with more than `max_length` tokens, and the choices of `too_long`."""
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
        f"{describe_choices(choices)}"
    )


def handle_long_texts(
    texts: Sequence[TextOrPair], lengths: np.ndarray, config: Config, too_long: str, choices: Sequence[str]
) -> None:
    """Raise an error if a text is too long, or, if `too_long` is not "error", log how many were truncated."""
    if too_long == "error":
        return check_text_lengths(texts, lengths, max_sequence_length(config), choices)
    notes: list[str] = []
    add_truncation_note(notes, lengths, config)
    for note in notes:
        log.warning(note)


def add_truncation_note(notes: list[str], lengths: np.ndarray, config: Config) -> None:
    """Add a note that counts the texts that were truncated."""
    max_length = max_sequence_length(config)
    if truncated := int((lengths > max_length).sum()):
        notes.append(f"{truncated:,} of {len(lengths):,} texts were truncated to the {max_length:,} tokens that fit")
