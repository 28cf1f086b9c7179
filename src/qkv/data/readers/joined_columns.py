"""A field that is made of several columns: `text = "title + body"` joins their texts with a space."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from qkv.data.readers.options import ReadOptions
from qkv.data.records import Record
from qkv.data.text_lists import is_text_list

JOINED_BY = " + "


def split_joined(column: str | int) -> list[str | int]:
    """The columns that a choice names.

    >>> split_joined("title + body"), split_joined("text"), split_joined(2)
    (['title', 'body'], ['text'], [2])
    """
    return [part.strip() for part in column.split(JOINED_BY)] if isinstance(column, str) else [column]


def expand_joined(options: ReadOptions) -> tuple[ReadOptions, dict[str, list[str]]]:
    """Options that read each part of a joined field as a field of its own, and the parts of each joined field."""
    columns: dict[str, str | int] = {}
    joined: dict[str, list[str]] = {}
    for name, column in (options.columns or {}).items():
        parts = split_joined(column)
        names = [name, *(f"{name}{JOINED_BY}{number}" for number in range(1, len(parts)))]
        columns.update(zip(names, parts, strict=True))
        if len(parts) > 1:
            joined[name] = names
    if not joined:
        return options, {}
    optional = (*options.optional, *(part for names in joined.values() for part in names[1:]))
    return replace(options, columns=columns, optional=optional), joined


def join_columns(records: Iterable[Record], joined: Mapping[str, list[str]]) -> Iterator[Record]:
    """The records with one text for each joined field; parts that are missing or blank are left out."""
    for record in records:
        fields = dict(record.fields)
        for name, parts in joined.items():
            texts = [_as_text(fields.pop(part, "")) for part in parts]
            fields[name] = " ".join(filter(None, texts))
        yield replace(record, fields=fields)


def _as_text(value: Any) -> str:
    return (" ".join(value) if is_text_list(value) else str(value)).strip()
