"""A record: one example as it was read from a file, and its location in that file.

Every reader turns its format into `Record`s, so nothing after the readers depends on a file's format.
"""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class FileLocation:
    """A file and a line in it. Lines count from 1; line 0 means the whole file.

    >>> str(FileLocation("train.tsv", 7))
    'train.tsv:7'
    """

    file: str
    line: int = 0

    def __str__(self) -> str:
        return f"{self.file}:{self.line}" if self.line else self.file


@dataclass(frozen=True, slots=True)
class Record:
    """One example: its fields by name, and the location it was read from.

    The type of a value depends on the file's format: `str` for text, `list[str]` for words or tags, numbers, and nested
    lists and dictionaries from JSON (the turns of a chat).

    >>> Record({"text": "hello"}, FileLocation("train.txt", 1)).fields["text"]
    'hello'
    """

    fields: dict[str, Any]
    location: FileLocation
