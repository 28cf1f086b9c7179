"""JSON Lines: each line is an object, and one record."""

import json
from collections.abc import Iterator
from typing import Any

from qkv.data.problems import InvalidRecord
from qkv.data.readers.columns import FieldSelector, check_characters
from qkv.data.readers.find_files import FileGroup
from qkv.data.readers.lines import read_lines
from qkv.data.readers.options import ReadContext
from qkv.data.records import FileLocation, Record


def read_jsonl(group: FileGroup, context: ReadContext) -> Iterator[Record]:
    """The objects of a JSON Lines file as records; `columns` may select inside them with dots: `translation.en`."""
    path, problems = group.paths[0], context.problems
    file = str(path)
    selector = FieldSelector(context.options.columns, file, context.options.optional)
    for number, line in read_lines(path, context):
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
            if "\\u" in line:  # only an escape can hold a surrogate or a NUL
                check_characters(row)
            yield Record(selector.select(row), FileLocation(file, number))
        except json.JSONDecodeError as error:
            problems.skip("broken JSON", FileLocation(file, number), f"{error.msg} at column {error.colno}")
        except RecursionError:
            problems.skip("broken JSON", FileLocation(file, number), "nested too deeply")
        except ValueError as error:  # a number of thousands of digits
            problems.skip("broken JSON", FileLocation(file, number), str(error))
        except InvalidRecord as invalid:
            problems.skip(invalid.category, FileLocation(file, number), invalid.reason)
    selector.finish()


def _type_name(value: Any) -> str:
    names = {list: "a list", str: "a text", bool: "true or false", int: "a number", float: "a number"}
    return names.get(type(value), "null")
