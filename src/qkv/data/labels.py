"""Labels and tags as texts: the names of classes.

The same label is the same class wherever it is read: in training, in evaluation and in reports, from a table (text) or
from JSON (text, a number, true or false).
"""

from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import replace
from math import isnan
from typing import Any

from qkv.data.problems import InvalidRecord, Problems
from qkv.data.records import Record

LABEL_TYPES = (str, int, float, bool)


def label_text(label: Any, field: str = "label") -> str:
    """The name of a class, without white space around it; raises `InvalidRecord` if it is empty or not a label.

    The name of a whole number has no decimals, because 1 and 1.0 are the same number in JSON.

    >>> [label_text(label) for label in (" pos ", 1, 1.0, 0.5, True)]
    ['pos', '1', '1', '0.5', 'true']
    """
    if not isinstance(label, LABEL_TYPES):
        raise InvalidRecord(f"the {field} must be a text or a number, not {type(label).__name__}", "wrong type")
    if isinstance(label, bool):
        return str(label).lower()
    if isinstance(label, float):
        label = "" if isnan(label) else int(label) if label.is_integer() else label
    text = str(label).strip()
    if not text:
        raise InvalidRecord(f"the {field} is empty", "no label")
    return text


def split_words(
    records: Iterable[Record], fields: Collection[str], split: Callable[[str], list[str]] = str.split
) -> Iterator[Record]:
    """Split the texts in `fields` of the records into lists of words."""
    for record in records:
        texts = {name: value for name in fields if isinstance(value := record.fields.get(name), str)}
        words = {name: split(text) for name, text in texts.items()}
        yield replace(record, fields={**record.fields, **words}) if words else record


def clean_labels(records: Iterable[Record], field: str, problems: Problems) -> Iterator[Record]:
    """Convert each label in `field` (a label or a list of labels) to text; leave out records with an invalid label."""
    name = field.removesuffix("s")  # of one label or tag, for messages
    for record in records:
        value = record.fields.get(field, [])
        try:
            label = [label_text(item, name) for item in value] if isinstance(value, list) else label_text(value, name)
        except InvalidRecord as invalid:
            problems.leave_out(invalid, record.location)
            continue
        yield replace(record, fields={**record.fields, field: label}) if field in record.fields else record
