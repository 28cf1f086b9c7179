"""Select the columns of a file that become the fields of a record.

A choice maps a record's field to a column of the file, by name or number: `{"source": "en", "target": "de"}`. A list
keeps the names. Without a choice every column becomes a field. For a name that does not exist, the error lists the
existing names.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import zip_longest
from typing import Any

from qkv.data.problems import InvalidRecord
from qkv.data.readers.options import ReadContext
from qkv.data.records import FileLocation, Record
from qkv.errors import UsageError, suggest_name

ColumnChoice = Mapping[str, str | int] | Sequence[str | int] | str | None

MISSING = object()  # the value of a name that a row does not have
MAX_ROWS_COMPARED = 100  # rows that decide whether the first row of a table has the names of its columns
USUAL_NAMES = {
    *("text", "label", "labels", "class", "category", "source", "target", "input", "output", "question", "answer"),
    *("sentence", "sentence1", "sentence2", "premise", "hypothesis", "score", "id", "title", "review", "content"),
    *("word", "words", "token", "tokens", "tag", "tags", "context", "query", "document", "summary", "prompt"),
}
"""Names that the columns of tables usually have."""
MAX_RECORDS_SEARCHED = 100  # a chosen field must occur in one of the first records of a JSON file


def normalize_columns(columns: ColumnChoice) -> dict[str, str | int] | None:
    """A choice of columns, as field → column, from a name, a list or a mapping.

    >>> normalize_columns(["text", 2]), normalize_columns({"source": "en"}), normalize_columns("text")
    ({'text': 'text', '2': 2}, {'source': 'en'}, {'text': 'text'})
    """
    if columns is None:
        return None
    if isinstance(columns, str):
        columns = [columns]
    chosen = dict(columns) if isinstance(columns, Mapping) else {str(column): column for column in columns}
    for column in chosen.values():
        if isinstance(column, int) and column < 0:
            raise UsageError(f"there is no column {column}: columns are counted from 0; give a name or a number")
    return chosen


def all_columns_are_indices(columns: dict[str, str | int] | None) -> bool:
    """Whether every column is given by number, as for a table without a header.

    >>> [all_columns_are_indices(columns) for columns in ({"text": 0, "label": "1"}, {"text": "text"}, None)]
    [True, False, False]
    """
    return columns is not None and all(_as_index(column) is not None for column in columns.values())


def looks_like_data(name: str) -> bool:
    """Whether a cell of a table's first line is a text or a number rather than the name of a column.

    >>> [looks_like_data(name) for name in ("the man sees a cat", "Who?", "3.5", "German text", "label_id")]
    [True, True, True, False, False]
    """
    return len(name.split()) > 3 or name.endswith((".", "!", "?")) or is_number(name)


def is_number(cell: str) -> bool:
    """Whether a cell is a decimal number.

    >>> is_number("-3.5"), is_number("7"), is_number("1e3"), is_number("v2")
    (True, True, False, False)
    """
    return cell.strip().removeprefix("-").replace(".", "", 1).isdecimal()


def is_data_row(first: list[str], others: Sequence[list[str]]) -> bool:
    """Whether the first row of a table is data and not the names of its columns, judged by the rows that follow.

    If a cell is the name of a column of numbers, the row is not data. Otherwise it is data in any of five cases: half
    of its cells look like data; a cell is a number above numbers; a cell occurs twice below it, as labels do; two of
    its cells are equal; or the words of half of its cells occur below them, and no cell is a usual name.

    >>> is_data_row(["A man plays.", "5.0"], [["A dog runs.", "1.2"]]), is_data_row(["How?", "Why?"], [["35", "So."]])
    (True, False)
    >>> is_data_row(["good film", "pos"], [["nice", "pos"], ["bad", "neg"], ["great", "pos"]])
    True
    >>> is_data_row(["a dog", "x"], [["a cat", "y"], ["the dog", "z"], ["a dog runs", "u"]])
    True
    """
    below = others[0] if others else first
    if any(is_number(value) and not is_number(cell) for cell, value in zip(first, below, strict=False)):
        return False
    if 2 * sum(map(looks_like_data, first)) >= len(first):
        return True
    columns = list(zip_longest(*others, fillvalue=""))
    if any(is_number(cell) and all(map(is_number, column)) for cell, column in zip(first, columns, strict=False)):
        return True
    different = [row for row in others if row != first]  # files that were joined repeat the names
    columns = list(zip_longest(*different, fillvalue=""))
    if any(cell and column.count(cell) >= 2 for cell, column in zip(first, columns, strict=False)):
        return True
    if USUAL_NAMES & {cell.strip().lower() for cell in first}:
        return False
    given = [cell for cell in first if cell.strip()]
    recurring = sum(_words_recur(cell, column) for cell, column in zip(first, columns, strict=False))
    return len(set(given)) < len(given) or 2 * recurring >= len(first)


def _words_recur(cell: str, column: Sequence[str]) -> bool:
    """Whether every word of a cell occurs in several cells below it."""
    counts = Counter(word for other in column for word in set(other.split()))
    return bool(cell.strip()) and all(counts[word] >= 2 for word in cell.split())


def column_indices(columns: dict[str, str | int] | None, names: Sequence[str], file: str) -> list[tuple[str, int]]:
    """(field, index of its column) for a format with fixed columns.

    >>> column_indices({"label": "tag", "last": 2}, ["word", "tag", "note"], "train.tsv")
    [('label', 1), ('last', 2)]
    """
    if columns is None:
        return [(name, index) for index, name in enumerate(names)]
    indices = []
    index_of_name = {name: index for index, name in enumerate(names)}
    for field, column in columns.items():
        number = _as_index(column)
        if isinstance(column, str) and column in index_of_name:
            index = index_of_name[column]
        elif number is not None and -len(names) <= number < len(names):
            index = number % len(names)
        else:
            raise unknown_column_error(column, names, file)
        indices.append((field, index))
    return indices


def unknown_column_error(column: str | int, names: Iterable[str], file: str) -> UsageError:
    """The error for a column that does not exist; it lists the existing columns."""
    known = list(names)
    hint = suggest_name(str(column), known)
    close = f" ({hint})" if hint.startswith("did you mean") else ""
    return UsageError(f"{file} has no column {column!r}{close}; its columns are: {', '.join(known)}")


class FieldSelector:
    """Selects the chosen fields of JSON objects, whose keys may differ from object to object.

    `translation.en` selects inside nested objects. An object that lacks a field, or has null, is an invalid record,
    unless the field is optional. If none of the first `MAX_RECORDS_SEARCHED` objects has a field, its name is reported
    as misspelt.
    """

    def __init__(self, columns: dict[str, str | int] | None, file: str, optional: Sequence[str] = ()):
        self.columns = None if columns is None else {field: str(column) for field, column in columns.items()}
        self.file = file
        self.optional = optional
        self.missing_fields = set(columns or ()) - set(optional)  # fields that no object had so far
        self.known_names: dict[str, None] = {}  # names found while some field is missing, in order
        self.num_searched = 0

    def select(self, row: dict[str, Any]) -> dict[str, Any]:
        """The record's fields; raises `InvalidRecord` with the name of a missing one."""
        if not row:
            raise InvalidRecord("the object has no fields", "empty object")
        if self.columns is None:
            return row
        if self.missing_fields:
            self._search(row, self.columns)
        try:
            fields = {field: row[column] for field, column in self.columns.items()}
        except KeyError:
            fields = {field: get_nested(row, column) for field, column in self.columns.items()}
        if None in fields.values():
            fields = {name: value for name, value in fields.items() if value is not None or name not in self.optional}
            missing = next((self.columns[name] for name, value in fields.items() if value is None), None)
            if missing is not None:
                raise InvalidRecord(
                    f"no field {missing!r}; it has: {_format_names(nested_names(row))}", "missing field"
                )
        return fields

    def finish(self) -> None:
        """Raise at the end of a file if a chosen name never occurred."""
        if self.columns and self.missing_fields and self.num_searched:
            first = next(field for field in self.columns if field in self.missing_fields)
            raise unknown_column_error(self.columns[first], self.known_names, self.file)

    def _search(self, row: dict[str, Any], columns: dict[str, str]) -> None:
        self.num_searched += 1
        self.known_names.update(dict.fromkeys(nested_names(row)))
        self.missing_fields -= {
            field for field in self.missing_fields if get_nested(row, columns[field], MISSING) is not MISSING
        }
        if self.num_searched >= MAX_RECORDS_SEARCHED:
            self.finish()


def select_records(rows: Iterable[Any], file: str, context: ReadContext) -> Iterator[Record]:
    """Convert rows, numbered from 1, to records with the chosen fields. Invalid rows are reported and skipped.

    A row is a dictionary, or an `InvalidRecord` with the reason why the row is invalid.
    """
    problems = context.problems
    selector = FieldSelector(context.options.columns, file, context.options.optional)
    for number, row in enumerate(rows, start=1):
        problems.num_seen += 1
        try:
            if isinstance(row, InvalidRecord):
                raise row
            check_characters(row)
            yield Record(selector.select(row), FileLocation(file, number))
        except InvalidRecord as invalid:
            problems.skip(invalid.category, FileLocation(file, number), invalid.reason)
        except RecursionError:
            problems.skip("broken JSON", FileLocation(file, number), "nested too deeply")
    selector.finish()


def check_characters(value: Any) -> None:
    """Raise `InvalidRecord` if a text, at any depth, contains a lone surrogate or a NUL.

    >>> check_characters({"text": "fine \U0001f642"})
    >>> check_characters({"text": "half \\ud83d"})
    Traceback (most recent call last):
    qkv.data.problems.InvalidRecord: half a surrogate pair (U+D83D) at position 6; the text was cut inside a character
    """
    if isinstance(value, str):
        if "\0" in value:
            raise InvalidRecord(f"a NUL character at position {value.index(chr(0)) + 1}", "NUL character")
        try:
            value.encode()
        except UnicodeEncodeError as error:
            surrogate = f"(U+{ord(value[error.start]):04X}) at position {error.start + 1}"
            reason = f"half a surrogate pair {surrogate}; the text was cut inside a character"
            raise InvalidRecord(reason, "lone surrogate") from None
    elif isinstance(value, dict):
        for key, inner in value.items():
            check_characters(key)
            check_characters(inner)
    elif isinstance(value, list):
        for inner in value:
            check_characters(inner)


def get_nested(row: dict[str, Any], name: str, default: Any = None) -> Any:
    """The value at a name or dotted path; `default` if there is none.

    >>> get_nested({"translation": {"en": "hello"}}, "translation.en")
    'hello'
    """
    if name in row:
        return row[name]
    head, dot, rest = name.partition(".")
    inner = row.get(head) if dot else None
    return get_nested(inner, rest, default) if isinstance(inner, dict) else default


def nested_names(row: dict[str, Any]) -> list[str]:
    """All names that a choice can use; a dot selects a field of a nested object.

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


def common_names(records: Sequence[Record], sparse: Collection[str] = ()) -> list[str]:
    """The columns that at least half of the records have; all columns if there are no such columns.

    A column in `sparse` counts even if only one record has it.

    >>> rows = [{"id": 1}, {"id": 2, "text": "a"}, {"id": 3, "text": "b", "note": "c"}]
    >>> common_names([Record(row, FileLocation("train.jsonl")) for row in rows])
    ['id', 'text']
    """
    counts = Counter(name for record in records for name in nested_names(record.fields))
    return [name for name, count in counts.items() if 2 * count >= len(records) or name in sparse] or list(counts)


def _as_index(column: str | int) -> int | None:
    if isinstance(column, int):
        return column  # −1, the default for CoNLL, is the last column; users cannot choose negative numbers
    return int(column) if column.isdecimal() and len(column) < 10 else None


def _format_names(names: list[str], max_names: int = 12) -> str:
    return ", ".join(names[:max_names]) + (", …" if len(names) > max_names else "") if names else "nothing"
