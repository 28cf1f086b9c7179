"""Modalities: the types of values that a field of a record can have, how they are checked and shown as text.

A field of an objective or task names its modality. To add a modality from outside, add a row:

    MODALITIES.register("colour", Modality(check=check_colour, show=str))
"""

from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from math import isfinite
from typing import Any, Literal

from qkv.data.labels import LABEL_TYPES, label_text
from qkv.data.payloads import PayloadFormat
from qkv.data.problems import InvalidRecord, Problems
from qkv.data.records import FileLocation, Record
from qkv.errors import suggest_name
from qkv.tables import OpenTable

TYPE_NAMES = {
    "str": "a text",
    "bool": "true or false",
    "int": "a number",
    "float": "a number",
    "list": "a list",
    "tuple": "a list",
    "dict": "an object",
    "NoneType": "null",
    "bytes": "the bytes of a file",
}


@dataclass(frozen=True)
class Modality:
    """A row of the table. `check` returns the problem of a value, such as "must be a text, not a list", or ""."""

    check: Callable[[Any], str]
    show: Callable[[Any], str]
    payload: PayloadFormat | None = None  # how values that are not texts become vectors
    # a text in a file → the text that the model reads; it notes what it changes, and raises `InvalidRecord`
    load: Callable[[str, Problems, FileLocation], str] | None = None
    split: Callable[[str], list[str]] = str.split  # a text → the entries that have a tag each


def load_protein(text: str, problems: Problems, location: FileLocation) -> str:
    """The residues of a text (`qkv.data.proteins`)."""
    from qkv.data.proteins import load_sequence

    return load_sequence(text, problems, location)


def split_letters(text: str) -> list[str]:
    """The residues of a text, or the labels of residues: its characters, or the words between spaces.

    >>> split_letters("MKT"), split_letters("H H E ")
    (['M', 'K', 'T'], ['H', 'H', 'E'])
    """
    words = text.split()
    return list(text.strip()) if len(words) == 1 else words


def must_be(expected: str, value: Any) -> str:
    """The problem of a value of another type.

    >>> must_be("a text", [1])
    'must be a text, not a list'
    """
    return f"must be {expected}, not {TYPE_NAMES.get(type(value).__name__, type(value).__name__)}"


def check_text(value: Any) -> str:
    """Check a text."""
    return "" if isinstance(value, str) else must_be("a text", value)


def check_label(value: Any) -> str:
    """Check the name of a class, or a number or boolean that stands for one."""
    if not isinstance(value, LABEL_TYPES):
        return must_be("a text or a number", value)
    try:
        label_text(value)
    except InvalidRecord:
        return "is empty"
    return ""


def check_number(value: Any) -> str:
    """Check a finite number, or a text that contains one."""
    is_known = isinstance(value, int | float | str) and not isinstance(value, bool)
    return "" if is_known and isfinite(to_number(value)) else must_be("a finite number", value)


def check_list(check: Callable[[Any], str], expected: str) -> Callable[[Any], str]:
    """Make the check of lists of `expected`, whose entries are checked by `check`."""

    def check_entries(value: Any) -> str:
        if not isinstance(value, list):
            return must_be(f"a list of {expected}", value)
        problems = ((number, problem) for number, one in enumerate(value) if (problem := check(one)))
        number, problem = next(problems, (0, ""))
        return f"has a wrong entry: number {number} {problem}" if problem else ""

    return check_entries


def check_message(value: Any) -> str:
    """Check a message of a chat."""
    is_message = isinstance(value, dict) and all(isinstance(value.get(key), str) for key in ("role", "content"))
    return "" if is_message else "must be an object with the texts 'role' and 'content'"


def check_index(value: Any) -> str:
    """Check the position of a character."""
    return "" if type(value) is int else must_be("an integer", value)


def to_number(value: float | str) -> float:
    """The number that a value is or contains; NaN if there is none."""
    try:
        return float(value)
    except ValueError:
        return float("nan")


MODALITIES = OpenTable[Modality](
    "modality",
    {
        "text": Modality(check_text, str),
        "protein": Modality(check_text, str, load=load_protein, split=split_letters),
        "texts": Modality(check_list(check_text, "texts"), "\n".join),
        "words": Modality(check_list(lambda word: "", "words"), lambda words: " ".join(map(str, words))),
        "label": Modality(check_label, label_text),
        "number": Modality(check_number, lambda value: f"{to_number(value):g}"),
        "tags": Modality(check_list(check_label, "tags"), lambda tags: " ".join(map(label_text, tags))),
        "messages": Modality(
            check_list(check_message, "messages"),
            lambda messages: "\n".join(f"{one['role']}: {one['content']}" for one in messages),
        ),
        "numbers": Modality(check_list(check_index, "integers"), lambda numbers: ", ".join(map(str, numbers))),
    },
    lazy={"image": "qkv.data.images:IMAGE", "audio": "qkv.data.sounds:AUDIO"},
)


TextModality = Literal["", "text", "protein"]
"""What the texts of a recipe can be (`data.modality`); "" is text."""


def load_texts(
    records: Iterable[Record], modality: str, fields: Collection[str], problems: Problems
) -> Iterator[Record]:
    """The records with the texts of these fields as a model of the modality reads them; a list keeps its entries."""
    load = MODALITIES[modality].load
    if load is None:
        yield from records
        return
    for record in records:
        loaded: dict[str, Any] = {}
        try:
            for name in fields:
                value = record.fields.get(name)
                if isinstance(value, str):
                    loaded[name] = load(value, problems, record.location)
                elif isinstance(value, list):
                    loaded[name] = list(load("".join(map(str, value)), problems, record.location))
                    if len(loaded[name]) != len(value):
                        raise InvalidRecord(f"an entry of the {name} is not one letter", "uneven lists")
        except InvalidRecord as invalid:
            problems.leave_out(invalid, record.location)
            continue
        yield replace(record, fields={**record.fields, **loaded})


def get_field(record: Record, name: str, modality: str = "text") -> Any:
    """Return a field of a record; raises `InvalidRecord` if the field is missing or not of the modality."""
    if name not in record.fields:
        raise InvalidRecord(f"no field {name!r}; {suggest_name(name, record.fields)}", "missing field")
    value = record.fields[name]
    if problem := MODALITIES.find(modality).check(value):
        raise InvalidRecord(f"the field {name!r} {problem}", "wrong type")
    return value


def parse_number(record: Record, name: str) -> float:
    """Read a field that is a number, or a text that contains a number."""
    if name in record.fields and check_number(record.fields[name]):
        raise InvalidRecord(f"the {name} {record.fields[name]!r} is not a number", "not a number")
    return to_number(get_field(record, name, "number"))


def describe_front_ends(config: Any) -> dict[str, dict[str, Any]]:
    """The settings of the front ends of a model's config, by modality, as a recipe has them in [model]."""
    own = {front_end.kind: asdict(front_end) for front_end in config.front_ends}
    payloads = ((name, row.payload) for name, row in MODALITIES.items()) if own else ()
    return {name: own[payload.kind] for name, payload in payloads if payload is not None and payload.kind in own}


def reads_files(config: Any) -> bool:
    """Whether a model with this config reads the content of files: images or sounds."""
    return not describe_front_ends(config).keys().isdisjoint(("image", "audio"))
