"""Errors that teach: what was wrong, where, and what to do next.

Every error that a person can cause is a `QkvError`. The command line prints its text and no traceback;
anything else that escapes is a bug of ours.
"""

from collections.abc import Iterable
from difflib import get_close_matches


class QkvError(Exception):
    """The work could not be done (exit code 1)."""

    exit_code = 1


class UsageError(QkvError):
    """The call itself was wrong: an unknown name, an impossible value (exit code 2)."""

    exit_code = 2


def nearest(name: str, known: Iterable[str]) -> str:
    """A ready-made hint: `did you mean 'gpt2'?` where a known name is close, else the list of all.

    >>> nearest("gtp2", ["gpt2", "bert-base"])
    "did you mean 'gpt2'?"
    >>> nearest("xyz", ["gpt2", "bert-base"])
    'known: bert-base, gpt2'
    """
    names = sorted(known)
    close = get_close_matches(name, names, n=1, cutoff=0.6)
    return f"did you mean {close[0]!r}?" if close else "known: " + ", ".join(names)
