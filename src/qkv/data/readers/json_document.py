"""A JSON document: a list of rows, or the nested form of SQuAD.

Unlike JSON Lines it must be held in memory, so its size has a limit.
"""

import json
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any

from qkv.data.problems import InvalidRecord
from qkv.data.readers.columns import get_nested, select_records
from qkv.data.readers.find_files import FileGroup
from qkv.data.readers.lines import utf8_blocks
from qkv.data.readers.options import ReadContext
from qkv.data.readers.squad import is_squad, squad_rows
from qkv.data.records import FileLocation, Record
from qkv.errors import QkvError, UsageError

MAX_KEYS = 20  # keys that are searched for lists at each level


def read_json(group: FileGroup, context: ReadContext) -> Iterator[Record]:
    """The rows of a JSON file: a list of objects, or of lists (with numbers as columns), or SQuAD's articles.

    `options.records_key` says where in the document the list is (`data`, or dotted: `splits.train`); an object with one
    list needs no key. The location counts rows from 1, because line numbers mean nothing in a document on one line.
    """
    document = _parse_document(group, context)
    if document is not None:
        file = str(group.paths[0])
        rows = _find_rows(document, group.format, file, context)
        yield from select_records(map(_as_object, rows), file, context)


def _parse_document(group: FileGroup, context: ReadContext) -> Any:
    path, problems, max_bytes = group.paths[0], context.problems, context.options.limits.max_json_bytes
    location = FileLocation(str(path))
    blocks, size = [], 0
    for block in utf8_blocks(path, context):
        size += len(block)
        if size > max_bytes:
            reason = f"a JSON document above {max_bytes:,} bytes; write it as JSON Lines, one object a line"
            problems.broken_file("document too large", location, reason)
            return None
        blocks.append(block)
    if size == 0:
        problems.note_empty_file(location)
        return None
    try:
        return json.loads(b"".join(blocks).decode())
    except UnicodeDecodeError as error:
        problems.broken_file("invalid UTF-8", location, f"byte {error.start + 1:,} is not UTF-8 ({error.reason})")
    except json.JSONDecodeError as error:
        reason = f"{error.msg} at column {error.colno}"
        problems.broken_file("broken JSON", FileLocation(str(path), error.lineno), reason)
    except RecursionError:
        problems.broken_file("broken JSON", location, "nested too deeply")
    except ValueError as error:
        problems.broken_file("broken JSON", location, str(error))
    return None


def _find_rows(document: Any, format: str, file: str, context: ReadContext) -> Iterable[Any]:
    key = context.options.records_key
    if format == "squad" or (key is None and is_squad(document)):
        if not is_squad(document):
            raise QkvError(f"{file} is not in SQuAD's format: a list `data` of articles with `paragraphs` is missing")
        return squad_rows(document)
    if key is not None:
        inner = get_nested(document, key) if isinstance(document, dict) else None
        if not isinstance(inner, list):
            lists = ", ".join(_list_keys(document)) or "none at the top level"
            raise UsageError(f"{file} has no list at key {key!r}; set records_key to one of its lists: {lists}")
        return inner
    if isinstance(document, list):
        return document
    keys = _list_keys(document)
    if len(keys) == 1:
        context.problems.note("key", FileLocation(file), f"the rows are read from its only list, {keys[0]!r}")
        rows: list[Any] = get_nested(document, keys[0])
        return rows
    hint = "write its rows as a JSON list of objects, or as JSON Lines, one object a line"
    if keys:
        hint = f"it has several lists, {', '.join(keys)}: choose one with --records-key {keys[0]} (data.records_key)"
    raise UsageError(f"{file} is not a list of rows; {hint}")


def _as_object(row: Any) -> dict[str, Any] | InvalidRecord:
    if isinstance(row, list):
        return {str(index): cell for index, cell in enumerate(row)}
    if isinstance(row, dict | InvalidRecord):
        return row
    return InvalidRecord("a row must be an object or a list", "not a JSON object")


def _list_keys(document: Any) -> list[str]:
    """The keys of a document's lists at the top level, or one level below if the top level has no lists."""
    if not isinstance(document, dict):
        return []
    keys = [key for key, value in document.items() if isinstance(value, list)]
    inner = [(key, value) for key, value in islice(document.items(), MAX_KEYS) if isinstance(value, dict)]
    return keys or [
        f"{key}.{name}"
        for key, value in inner
        for name, found in islice(value.items(), MAX_KEYS)
        if isinstance(found, list)
    ]
