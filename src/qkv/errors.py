"""The exceptions of qkv. A message says what is wrong, where, and what to do next.

Every error that a user can cause is a `QkvError`, and the command line prints its message without a traceback. Any
other exception is a bug in qkv.
"""

from collections.abc import Iterable
from contextlib import suppress
from difflib import get_close_matches
from pathlib import Path

MAX_MESSAGE_CHARACTERS = 4000
MAX_COMPARED = 200
"""A suggestion compares only this many characters of a name, because comparing takes quadratic time."""


class QkvError(Exception):
    """The work failed (exit code 1). The middle of a very long message is left out."""

    exit_code = 1

    def __init__(self, message: object = "") -> None:
        super().__init__(shorten(str(message), MAX_MESSAGE_CHARACTERS))


class UsageError(QkvError):
    """The call was wrong: an unknown name or an invalid value (exit code 2)."""

    exit_code = 2


class ContextLengthError(UsageError):
    """A text has more tokens than the model's context. Programs may shorten it and try again."""


def shorten(text: str, max_characters: int = 100) -> str:
    """Leave out the middle of a long text, such as a value in an error message.

    >>> shorten("a" * 500, 20)
    'aaaaaaaaaaaaaaa … (480 characters left out) … aaaaa'
    """
    if len(text) <= max_characters:
        return text
    end = max_characters // 4
    start = max_characters - end
    return f"{text[:start]} … ({len(text) - max_characters:,} characters left out) … {text[-end:]}"


def count_nouns(number: int, noun: str) -> str:
    """A number with its noun, in the plural if necessary.

    >>> count_nouns(1, "training record"), count_nouns(1200, "line"), count_nouns(2, "class"), count_nouns(3, "query")
    ('1 training record', '1,200 lines', '2 classes', '3 queries')
    """
    if number == 1:
        return f"1 {noun}"
    if noun.endswith("y"):
        return f"{number:,} {noun[:-1]}ies"
    return f"{number:,} {noun}{'es' if noun.endswith('s') else 's'}"


def suggest_name(name: str, known: Iterable[str]) -> str:
    """A hint for a misspelt name: the most similar known name, or a list of all known names.

    >>> suggest_name("gtp2", ["gpt2", "bert-base"])
    "did you mean 'gpt2'?"
    >>> suggest_name("xyz", ["gpt2", "bert-base"])
    'known: bert-base, gpt2'
    """
    names = sorted(known)
    close = get_close_matches(name[:MAX_COMPARED], names, n=1, cutoff=0.6)
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
    close = get_close_matches(path.name[:MAX_COMPARED], names, n=1, cutoff=0.6)
    return f"; did you mean {path.parent / close[0]}?" if close else ""
