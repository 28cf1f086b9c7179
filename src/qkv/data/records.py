"""One example as a file gives it, and where it came from.

Every reader turns its format into `Record`s, so nothing after the readers knows what a file looked like.
"""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class FileLocation:
    """A place in the user's files: `line` counts from 1; 0 means the whole file.

    >>> str(FileLocation("train.tsv", 7))
    'train.tsv:7'
    """

    file: str
    line: int = 0

    def __str__(self) -> str:
        return f"{self.file}:{self.line}" if self.line else self.file


@dataclass(frozen=True, slots=True)
class Record:
    """One example: its fields by name, and where it stands.

    Values are what the format gives: `str` for text, `list[str]` for tokens or tags, numbers, and lists or
    dictionaries of these from JSON (chat turns).

    >>> Record({"text": "hello"}, FileLocation("train.txt", 1)).fields["text"]
    'hello'
    """

    fields: dict[str, Any]
    location: FileLocation
