"""The exceptions of qkv. A message says what is wrong, where, and what to do next.

Every error that a user can cause is a `QkvError`, and the command line prints its message without a traceback. Any
other exception is a bug in qkv.
"""

from collections.abc import Iterable
from contextlib import suppress
from difflib import get_close_matches
from pathlib import Path


class QkvError(Exception):
    """The work failed (exit code 1)."""

    exit_code = 1


class UsageError(QkvError):
    """The call was wrong: an unknown name or an invalid value (exit code 2)."""

    exit_code = 2


def suggest_name(name: str, known: Iterable[str]) -> str:
    """A hint for a misspelt name: the most similar known name, or a list of all known names.

    >>> suggest_name("gtp2", ["gpt2", "bert-base"])
    "did you mean 'gpt2'?"
    >>> suggest_name("xyz", ["gpt2", "bert-base"])
    'known: bert-base, gpt2'
    """
    names = sorted(known)
    close = get_close_matches(name, names, n=1, cutoff=0.6)
    return f"did you mean {close[0]!r}?" if close else "known: " + ", ".join(names)


def suggest_path(path: Path, pattern: str = "*", *, folders: bool = False) -> str:
    """A hint for a missing path, such as `; did you mean runs/dates?`; empty if its folder has no similar name.

    With `folders`, only folders are suggested.

    >>> suggest_path(Path("no/such/thing"))
    ''
    """
    names: list[str] = []
    with suppress(OSError):
        names = [sibling.name for sibling in path.parent.glob(pattern) if sibling.is_dir() or not folders]
    close = get_close_matches(path.name, names, n=1, cutoff=0.6)
    return f"; did you mean {path.parent / close[0]}?" if close else ""
