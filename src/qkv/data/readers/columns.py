"""Which columns of a file become which fields of a record.

A choice maps a record's field to a column of the file, by name or by number: `{"source": "en", "target": "de"}`. A
plain list keeps the names. No choice takes all columns as they are. A name that is not there is the caller's mistake,
and the error lists the names that are.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from qkv.data.problems import BadRecord
from qkv.errors import UsageError, nearest

Columns = Mapping[str, str | int] | Sequence[str | int] | str | None

LOOK = 100  # records of a free-form file (JSON Lines) in which a chosen name must turn up


def normal(columns: Columns) -> dict[str, str | int] | None:
    """Any way of writing a choice, as field → column.

    >>> normal(["text", 2]), normal({"source": "en"}), normal("text")
    ({'text': 'text', '2': 2}, {'source': 'en'}, {'text': 'text'})
    """
    if columns is None:
        return None
    if isinstance(columns, str):
        columns = [columns]
    if isinstance(columns, Mapping):
        return dict(columns)
    return {str(column): column for column in columns}


def numbered(choice: dict[str, str | int] | None) -> bool:
    """Whether every column of the choice is given by number, as for a table without a header.

    >>> numbered({"text": 0, "label": "-1"}), numbered({"text": "text"}), numbered(None)
    (True, False, False)
    """
    return choice is not None and all(_number(column) is not None for column in choice.values())


def looks_like_data(name: str) -> bool:
    """Whether what stands in a table's first line is a text or a number rather than the name of a column.

    >>> [looks_like_data(name) for name in ("the man sees a cat", "Who?", "3.5", "German text", "label_id")]
    [True, True, True, False, False]
    """
    words = name.split()
    return len(words) > 3 or name.endswith((".", "!", "?")) or name.replace(".", "", 1).isdigit()


def places(choice: dict[str, str | int] | None, names: Sequence[str], file: str) -> list[tuple[str, int]]:
    """(field, place of its column) for a format whose columns are fixed.

    >>> places({"label": "tag", "last": -1}, ["word", "tag", "note"], "train.tsv")
    [('label', 1), ('last', 2)]
    """
    if choice is None:
        return [(name, place) for place, name in enumerate(names)]
    chosen = []
    for field, column in choice.items():
        number = _number(column)
        if isinstance(column, str) and column in names:
            place = names.index(column)
        elif number is not None and -len(names) <= number < len(names):
            place = number % len(names)
        else:
            raise no_column(column, names, file)
        chosen.append((field, place))
    return chosen


def no_column(column: str | int, names: Iterable[str], file: str) -> UsageError:
    """The error for a name that is not there: it lists those that are."""
    known = list(names)
    hint = nearest(str(column), known)
    close = f" ({hint})" if hint.startswith("did you mean") else ""
    return UsageError(f"{file} has no column {column!r}{close}; its columns are: {', '.join(known)}")


class Picker:
    """Takes the chosen fields out of free-form objects (JSON), where each may have other keys.

    `translation.en` reaches into nested objects. A field that one object lacks makes that record bad; one that none
    of the first `LOOK` objects has is a misspelt name, and an error.
    """

    def __init__(self, choice: dict[str, str | int] | None, file: str):
        self.choice = None if choice is None else {field: str(column) for field, column in choice.items()}
        self.file = file
        self.unseen = set(choice or ())  # fields not found in any object yet
        self.known: dict[str, None] = {}  # names met while some field is unseen, in order
        self.looked = 0

    def pick(self, row: dict[str, Any]) -> dict[str, Any]:
        """The record's fields; raises `BadRecord` naming the missing one."""
        if self.choice is None:
            return row
        if self.unseen:
            self._look(row)
        try:
            fields = {field: row[column] for field, column in self.choice.items()}
        except KeyError:
            fields = {field: reach(row, column) for field, column in self.choice.items()}
        if None in fields.values():
            lacking = next(column for field, column in self.choice.items() if fields[field] is None)
            raise BadRecord(f"no field {lacking!r}; it has: {_listed(names_of(row))}", "missing field")
        return fields

    def finish(self) -> None:
        """At the end of a file: a name that never turned up is a mistake of the caller."""
        if self.unseen and self.looked:
            assert self.choice is not None
            first = next(field for field in self.choice if field in self.unseen)
            raise no_column(self.choice[first], self.known, self.file)

    def _look(self, row: dict[str, Any]) -> None:
        assert self.choice is not None
        self.looked += 1
        self.known.update(dict.fromkeys(names_of(row)))
        self.unseen -= {field for field in self.unseen if reach(row, self.choice[field], present=True)}
        if self.unseen and self.looked >= LOOK:
            self.finish()


def reach(row: dict[str, Any], name: str, present: bool = False) -> Any:
    """The value at a name or dotted path, else None; with `present`, whether the name is there at all.

    >>> reach({"translation": {"en": "hello"}}, "translation.en")
    'hello'
    """
    if name in row:
        return True if present else row[name]
    head, dot, rest = name.partition(".")
    inner = row.get(head) if dot else None
    if isinstance(inner, dict):
        return reach(inner, rest, present)
    return False if present else None


def names_of(row: dict[str, Any]) -> list[str]:
    """The names a choice can use, with the insides of nested objects dotted.

    >>> names_of({"id": 1, "translation": {"en": "hello", "de": "hallo"}})
    ['id', 'translation.en', 'translation.de']
    """
    names = []
    for key, value in row.items():
        if isinstance(value, dict) and value:
            names += [f"{key}.{inner}" for inner in names_of(value)]
        else:
            names.append(key)
    return names


def _number(column: str | int) -> int | None:
    if isinstance(column, int):
        return column
    return int(column) if column.removeprefix("-").isdecimal() else None


def _listed(names: list[str], most: int = 12) -> str:
    return ", ".join(names[:most]) + (", …" if len(names) > most else "") if names else "nothing"
