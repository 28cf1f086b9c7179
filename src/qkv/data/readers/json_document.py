"""A JSON document: a list of rows, or the nested form of SQuAD.

Unlike JSON Lines it must be held whole, so its size has a limit.
"""

import json
from collections.abc import Iterator
from typing import Any

from qkv.data.problems import InvalidRecord
from qkv.data.readers.columns import FieldSelector, get_nested
from qkv.data.readers.find_files import FileGroup
from qkv.data.readers.jsonl import check_text
from qkv.data.readers.lines import utf8_blocks
from qkv.data.readers.options import ReadContext
from qkv.data.readers.squad import is_squad, squad_rows
from qkv.data.records import FileLocation, Record
from qkv.errors import QkvError, UsageError


def read_json(group: FileGroup, context: ReadContext) -> Iterator[Record]:
    """Rows of a JSON file: a list of objects, or of lists (whose columns are numbers), or SQuAD's articles.

    `options.key` says where in the document the list is (`data`, or dotted: `splits.train`). Line numbers would mean
    nothing in a document on one line; `where.line` counts the rows from 1.
    """
    file, problems = str(group.paths[0]), context.problems
    document = _parse_document(group, context)
    if document is None:
        return
    picker = FieldSelector(context.options.columns, file)
    for number, row in enumerate(_find_rows(document, group.format, context.options.key, file), start=1):
        problems.num_seen += 1
        try:
            if isinstance(row, InvalidRecord):
                raise row
            if isinstance(row, list):
                row = {str(place): cell for place, cell in enumerate(row)}
            if not isinstance(row, dict):
                raise InvalidRecord("a row is an object or a list", "not a JSON object")
            check_text(row)
            yield Record(picker.select(row), FileLocation(file, number))
        except InvalidRecord as bad:
            problems.skip(bad.category, FileLocation(file, number), bad.reason)
        except RecursionError:
            problems.skip("broken JSON", FileLocation(file, number), "nested too deeply")
    picker.finish()


def _parse_document(group: FileGroup, context: ReadContext) -> Any:
    path, problems, limits = group.paths[0], context.problems, context.options.limits
    where = FileLocation(str(path))
    pieces, size = [], 0
    for block in utf8_blocks(path, problems, limits, context.options.encoding, context.on_bytes):
        size += len(block)
        if size > limits.max_json_bytes:
            reason = f"a JSON document above {limits.max_json_bytes:,} bytes; write it as JSON Lines, one object a line"
            problems.broken_file("document too large", where, reason)
            return None
        pieces.append(block)
    if size == 0:
        problems.note("empty file", where, "the file holds nothing")
        return None
    try:
        return json.loads(b"".join(pieces).decode())
    except UnicodeDecodeError as error:
        problems.broken_file("invalid UTF-8", where, f"byte {error.start + 1:,} is not UTF-8 ({error.reason})")
    except json.JSONDecodeError as error:
        problems.broken_file(
            "broken JSON", FileLocation(str(path), error.lineno), f"{error.msg} at column {error.colno}"
        )
    except RecursionError:
        problems.broken_file("broken JSON", where, "nested too deeply")
    except ValueError as error:
        problems.broken_file("broken JSON", where, str(error))
    return None


def _find_rows(document: Any, format: str, key: str | None, file: str) -> Iterator[Any]:
    if format == "squad" or (key is None and is_squad(document)):
        if not is_squad(document):
            raise QkvError(f"{file} is not SQuAD: a list `data` of articles with `paragraphs` is missing")
        return squad_rows(document)
    if key is not None:
        inner = get_nested(document, key) if isinstance(document, dict) else None
        if not isinstance(inner, list):
            raise UsageError(f"{file} has no list at key {key!r}; {_list_keys_hint(document)}")
        document = inner
    if not isinstance(document, list):
        raise UsageError(f"{file} is not a list of rows; say with `key` where the list is; {_list_keys_hint(document)}")
    return iter(document)


def _list_keys_hint(document: Any) -> str:
    keys = [key for key, value in document.items() if isinstance(value, list)] if isinstance(document, dict) else []
    return "lists are at: " + ", ".join(keys) if keys else "it holds no lists"
