"""Texts that are given as lists: the sentences of a document, or one or more summaries of it."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any, Literal, TypeGuard

from qkv.data.problems import InvalidRecord, Problems
from qkv.data.records import Record

ListMeaning = Literal["sentences", "alternatives"]
"""What a list of texts is. A list of several alternatives is no text, because they could also be sentences."""


def is_text_list(value: Any) -> TypeGuard[list[str]]:
    """Whether a value is a list of texts.

    >>> is_text_list(["A sentence.", "Another one."]), is_text_list("A sentence."), is_text_list([1])
    (True, False, False)
    """
    return isinstance(value, list) and all(isinstance(text, str) for text in value)


def join_text_list(texts: list[str], name: str, meaning: ListMeaning) -> str:
    """The text of a list: its sentences with spaces between them, or its only alternative.

    >>> join_text_list(["A sentence.", "Another one."], "source", "sentences")
    'A sentence. Another one.'
    """
    if meaning == "alternatives" and len(texts) > 1:
        raise InvalidRecord(
            f"the {name} is a list of {len(texts)} texts; join them if they are the sentences of one text, or write a "
            "record for each if they are alternatives",
            "several texts",
        )
    return " ".join(texts)


def join_text_lists(
    records: Iterable[Record], fields: Mapping[str, ListMeaning], problems: Problems
) -> Iterator[Record]:
    """Convert each list of texts in `fields` to one text; leave out records whose list has several alternatives."""
    for record in records:
        lists = {name: value for name in fields if is_text_list(value := record.fields.get(name))}
        try:
            texts = {name: join_text_list(value, name, fields[name]) for name, value in lists.items()}
        except InvalidRecord as invalid:
            problems.leave_out(invalid, record.location)
            continue
        yield replace(record, fields={**record.fields, **texts}) if texts else record
