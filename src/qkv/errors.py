"""Errors that teach: what was wrong, where, and what to do next.

Every error that a person can cause is a `QkvError`. The command line prints its text and no traceback;
anything else that escapes is a bug of ours.
"""

from collections.abc import Iterable
from contextlib import suppress
from difflib import get_close_matches
from pathlib import Path


class QkvError(Exception):
    """The work could not be done (exit code 1)."""

    exit_code = 1


class UsageError(QkvError):
    """The call itself was wrong: an unknown name, an impossible value (exit code 2)."""

    exit_code = 2


def suggest_name(name: str, known: Iterable[str]) -> str:
    """A ready-made hint: `did you mean 'gpt2'?` where a known name is close, else the list of all.

    >>> suggest_name("gtp2", ["gpt2", "bert-base"])
    "did you mean 'gpt2'?"
    >>> suggest_name("xyz", ["gpt2", "bert-base"])
    'known: bert-base, gpt2'
    """
    names = sorted(known)
    close = get_close_matches(name, names, n=1, cutoff=0.6)
    return f"did you mean {close[0]!r}?" if close else "known: " + ", ".join(names)


def suggest_path(path: Path, pattern: str = "*", *, folders: bool = False) -> str:
    """A hint for a path that is not there, `; did you mean runs/dates?`, where its folder has one of a like name.

    >>> suggest_path(Path("no/such/thing"))
    ''
    """
    names: list[str] = []
    with suppress(OSError):
        names = [one.name for one in path.parent.glob(pattern) if one.is_dir() or not folders]
    close = get_close_matches(path.name, names, n=1, cutoff=0.6)
    return f"; did you mean {path.parent / close[0]}?" if close else ""
