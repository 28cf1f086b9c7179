"""Which columns of a file become which fields of a record.

A choice maps a record's field to a column of the file, by name or by number: `{"source": "en", "target": "de"}`. A
plain list keeps the names. No choice takes all columns as they are. A name that is not there is the caller's mistake,
and the error lists the names that are.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from qkv.data.problems import InvalidRecord
from qkv.errors import UsageError, suggest_name

ColumnChoice = Mapping[str, str | int] | Sequence[str | int] | str | None

MAX_RECORDS_SEARCHED = 100  # records of a free-form file (JSON Lines) in which a chosen name must turn up


def normalize_columns(columns: ColumnChoice) -> dict[str, str | int] | None:
    """Any way of writing a choice, as field → column.

    >>> normalize_columns(["text", 2]), normalize_columns({"source": "en"}), normalize_columns("text")
    ({'text': 'text', '2': 2}, {'source': 'en'}, {'text': 'text'})
    """
    if columns is None:
        return None
    if isinstance(columns, str):
        columns = [columns]
    if isinstance(columns, Mapping):
        return dict(columns)
    return {str(column): column for column in columns}


def chosen_by_number(columns: dict[str, str | int] | None) -> bool:
    """Whether every column of the choice is given by number, as for a table without a header.

    >>> chosen_by_number({"text": 0, "label": "-1"}), chosen_by_number({"text": "text"}), chosen_by_number(None)
    (True, False, False)
    """
    return columns is not None and all(_as_index(column) is not None for column in columns.values())


def looks_like_data(name: str) -> bool:
    """Whether what stands in a table's first line is a text or a number rather than the name of a column.

    >>> [looks_like_data(name) for name in ("the man sees a cat", "Who?", "3.5", "German text", "label_id")]
    [True, True, True, False, False]
    """
    words = name.split()
    return len(words) > 3 or name.endswith((".", "!", "?")) or name.replace(".", "", 1).isdigit()


def column_indices(columns: dict[str, str | int] | None, names: Sequence[str], file: str) -> list[tuple[str, int]]:
    """(field, place of its column) for a format whose columns are fixed.

    >>> column_indices({"label": "tag", "last": -1}, ["word", "tag", "note"], "train.tsv")
    [('label', 1), ('last', 2)]
    """
    if columns is None:
        return [(name, place) for place, name in enumerate(names)]
    chosen = []
    for field, column in columns.items():
        number = _as_index(column)
        if isinstance(column, str) and column in names:
            place = names.index(column)
        elif number is not None and -len(names) <= number < len(names):
            place = number % len(names)
        else:
            raise unknown_column_error(column, names, file)
        chosen.append((field, place))
    return chosen


def unknown_column_error(column: str | int, names: Iterable[str], file: str) -> UsageError:
    """The error for a name that is not there: it lists those that are."""
    known = list(names)
    hint = suggest_name(str(column), known)
    close = f" ({hint})" if hint.startswith("did you mean") else ""
    return UsageError(f"{file} has no column {column!r}{close}; its columns are: {', '.join(known)}")


class FieldSelector:
    """Takes the chosen fields out of free-form objects (JSON), where each may have other keys.

    `translation.en` reaches into nested objects. A field that one object lacks makes that record bad; one that none
    of the first `LOOK` objects has is a misspelt name, and an error.
    """

    def __init__(self, columns: dict[str, str | int] | None, file: str):
        self.columns = None if columns is None else {field: str(column) for field, column in columns.items()}
        self.file = file
        self.missing_fields = set(columns or ())  # fields not found in any object yet
        self.known_names: dict[str, None] = {}  # names met while some field is unseen, in order
        self.num_searched = 0

    def select(self, row: dict[str, Any]) -> dict[str, Any]:
        """The record's fields; raises `BadRecord` naming the missing one."""
        if self.columns is None:
            return row
        if self.missing_fields:
            self._search(row)
        try:
            fields = {field: row[column] for field, column in self.columns.items()}
        except KeyError:
            fields = {field: get_nested(row, column) for field, column in self.columns.items()}
        if None in fields.values():
            lacking = next(column for field, column in self.columns.items() if fields[field] is None)
            raise InvalidRecord(f"no field {lacking!r}; it has: {_format_names(nested_names(row))}", "missing field")
        return fields

    def finish(self) -> None:
        """At the end of a file: a name that never turned up is a mistake of the caller."""
        if self.missing_fields and self.num_searched:
            assert self.columns is not None
            first = next(field for field in self.columns if field in self.missing_fields)
            raise unknown_column_error(self.columns[first], self.known_names, self.file)

    def _search(self, row: dict[str, Any]) -> None:
        assert self.columns is not None
        self.num_searched += 1
        self.known_names.update(dict.fromkeys(nested_names(row)))
        self.missing_fields -= {
            field for field in self.missing_fields if get_nested(row, self.columns[field], present=True)
        }
        if self.missing_fields and self.num_searched >= MAX_RECORDS_SEARCHED:
            self.finish()


def get_nested(row: dict[str, Any], name: str, present: bool = False) -> Any:
    """The value at a name or dotted path, else None; with `present`, whether the name is there at all.

    >>> get_nested({"translation": {"en": "hello"}}, "translation.en")
    'hello'
    """
    if name in row:
        return True if present else row[name]
    head, dot, rest = name.partition(".")
    inner = row.get(head) if dot else None
    if isinstance(inner, dict):
        return get_nested(inner, rest, present)
    return False if present else None


def nested_names(row: dict[str, Any]) -> list[str]:
    """The names a choice can use, with the insides of nested objects dotted.

    >>> nested_names({"id": 1, "translation": {"en": "hello", "de": "hallo"}})
    ['id', 'translation.en', 'translation.de']
    """
    names = []
    for key, value in row.items():
        if isinstance(value, dict) and value:
            names += [f"{key}.{inner}" for inner in nested_names(value)]
        else:
            names.append(key)
    return names


def _as_index(column: str | int) -> int | None:
    if isinstance(column, int):
        return column
    return int(column) if column.removeprefix("-").isdecimal() else None


def _format_names(names: list[str], max_names: int = 12) -> str:
    return ", ".join(names[:max_names]) + (", …" if len(names) > max_names else "") if names else "nothing"
