"""JSON Lines: one object a line is one record."""

import json
from collections.abc import Iterator
from typing import Any

from qkv.data.problems import InvalidRecord
from qkv.data.readers.columns import FieldSelector
from qkv.data.readers.find_files import FileGroup
from qkv.data.readers.options import ReadContext
from qkv.data.records import FileLocation, Record


def read_jsonl(group: FileGroup, context: ReadContext) -> Iterator[Record]:
    """Objects of a JSON Lines file as records; `columns` may reach inside with dots: `translation.en`."""
    path, problems = group.paths[0], context.problems
    file = str(path)
    picker = FieldSelector(context.options.columns, file)
    for number, line in context.lines(path):
        if line is None:
            problems.num_seen += 1
            continue
        if not line or line.isspace():
            problems.note("blank line", FileLocation(file, number), "blank lines are left out")
            continue
        problems.num_seen += 1
        try:
            row = json.loads(line)
            if type(row) is not dict:
                raise InvalidRecord(f"not an object but {_type_name(row)}", "not a JSON object")
            if "\\u" in line:  # only an escape can bring a surrogate or a NUL in
                check_text(row)
            yield Record(picker.select(row), FileLocation(file, number))
        except json.JSONDecodeError as error:
            problems.skip("broken JSON", FileLocation(file, number), f"{error.msg} at column {error.colno}")
        except RecursionError:
            problems.skip("broken JSON", FileLocation(file, number), "nested too deeply")
        except ValueError as error:  # a number of thousands of digits
            problems.skip("broken JSON", FileLocation(file, number), str(error))
        except InvalidRecord as bad:
            problems.skip(bad.category, FileLocation(file, number), bad.reason)
    picker.finish()


def check_text(value: Any) -> None:
    """Raise `BadRecord` where a text, however deep, holds a lone surrogate or a NUL.

    >>> check_text({"text": "fine \U0001f642"})
    >>> check_text({"text": "half \\ud83d"})
    Traceback (most recent call last):
    qkv.data.problems.InvalidRecord: half a surrogate pair (U+D83D) at place 6; the text was cut inside a character
    """
    if isinstance(value, str):
        if "\0" in value:
            raise InvalidRecord(f"a NUL character at place {value.index(chr(0)) + 1}", "NUL character")
        try:
            value.encode()
        except UnicodeEncodeError as error:
            code = ord(value[error.start])
            place = f"(U+{code:04X}) at place {error.start + 1}"
            reason = f"half a surrogate pair {place}; the text was cut inside a character"
            raise InvalidRecord(reason, "lone surrogate") from None
    elif isinstance(value, dict):
        for key, inner in value.items():
            check_text(key)
            check_text(inner)
    elif isinstance(value, list):
        for inner in value:
            check_text(inner)


def _type_name(value: Any) -> str:
    names = {list: "a list", str: "a text", bool: "true or false", int: "a number", float: "a number"}
    return names.get(type(value), "null")
