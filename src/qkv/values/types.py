"""Properties of types: limits, choices, names for error messages, and the fields of dataclasses."""

import json
from collections.abc import Callable, Collection
from collections.abc import Callable as CallableType
from dataclasses import MISSING, dataclass, fields, is_dataclass
from functools import cache
from types import MappingProxyType, NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from qkv.errors import UsageError, shorten

Path = tuple[str | int, ...]
"""Where a value is: the names of fields and the numbers of list items that lead to it."""
HIDDEN = MappingProxyType({"hidden": True})
"""Metadata of a field that is not part of JSON."""
OMIT_EMPTY = MappingProxyType({"omit_empty": True})
"""Metadata of a field that is left out of JSON if it is None or an empty string, list or table."""


class InvalidValue(UsageError, ValueError):
    """A value does not have the type of its field. `path` is the field, such as "messages[0].role"."""

    def __init__(self, message: str, path: str = "") -> None:
        super().__init__(message)
        self.path = path


@dataclass(frozen=True)
class Limits:
    """The limits of a number, of the characters of a string, or of the items of a list or table. `below` is exclusive.

    Infinity and NaN are outside of all limits.
    """

    minimum: float | None = None
    maximum: float | None = None
    below: float | None = None

    def find_problem(self, value: Any) -> str:
        """The problem of a value, such as "must be at most 10", or "". None has no limits.

        >>> Limits(0, below=1).find_problem(1.0), Limits(1).find_problem(""), Limits(0, 5).find_problem(5)
        ('must be below 1', 'must have at least 1 character, and has 0', '')
        """
        if value is None:
            return ""
        is_sized = isinstance(value, str | list | tuple | dict)
        size = len(value) if is_sized else value
        limits = ((self.minimum, "at least"), (self.maximum, "at most"), (self.below, "below"))
        for limit, word in limits:
            if limit is None:
                continue
            if not (size >= limit if word == "at least" else size <= limit if word == "at most" else size < limit):
                shown = f"{limit:,}" if isinstance(limit, int) else f"{limit:g}"
                if not is_sized:
                    return f"must be {word} {shown}"
                unit = ("character" if isinstance(value, str) else "item") + ("" if limit == 1 else "s")
                remedy = "" if word == "at least" else "; shorten it" if isinstance(value, str) else "; leave some out"
                return f"must have {word} {shown} {unit}, and has {size:,}{remedy}"
        return ""


@dataclass(frozen=True, eq=False)
class OneOf:
    """The names that a string may be, such as the rows of an `OpenTable`; they are read when a value is checked.

    `optional` allows the empty string, too.
    """

    names: Collection[str]
    optional: bool = False


@dataclass(frozen=True)
class Expected:
    """The phrase for a type in error messages, if its name does not suffice."""

    text: str


@dataclass(frozen=True)
class Partial:
    """A table with some of the fields of a dataclass, which stays a table. Dataclasses inside it stay tables, too."""

    of: type
    without: frozenset[str] = frozenset()

    def find_types(self) -> dict[str, Any]:
        """Return the types of the keys."""
        return {f.key: keep_tables(f.type) for f in find_fields(self.of) if f.key not in self.without}


@dataclass(frozen=True)
class Notation:
    """How values and types are written in error messages."""

    show: Callable[[Any], str]
    table: str  # the name for a mapping


def show_json(value: Any) -> str:
    """Return a value in the notation of JSON, which is also the notation of TOML for strings, numbers and lists."""
    text = json.dumps(value, ensure_ascii=False, default=repr)
    return text.encode("utf-8", "backslashreplace").decode()


JSON, TOML, PYTHON = Notation(show_json, "an object"), Notation(show_json, "a table"), Notation(repr, "a dictionary")

TYPE_NAMES = {str: "a string", int: "an integer", float: "a number", bool: "true or false"}
PLURAL_TYPE_NAMES = {str: "strings", int: "integers", float: "numbers"}


def strip_notes(expected: Any) -> tuple[Any, tuple[Any, ...]]:
    """Return the type inside `Annotated`, and its notes."""
    if get_origin(expected) is Annotated:
        inner, *notes = get_args(expected)
        return inner, tuple(notes)
    return expected, ()


def is_union(expected: Any) -> bool:
    """Whether a type is a union, such as `int | None`."""
    return get_origin(expected) in (Union, UnionType)


def keep_tables(expected: Any) -> Any:
    """Return a type with partial tables in place of dataclasses, if the type is a dataclass or a union with some."""
    if is_union(expected):
        return Union[tuple(keep_tables(member) for member in get_args(expected))]  # noqa: UP007
    return Annotated[dict[str, Any], Partial(expected)] if is_dataclass(expected) else expected  # type: ignore[arg-type]


def find_choices(expected: Any) -> tuple[Any, ...]:
    """Return the named values that a type allows: those of `Literal` and `OneOf`, also in a union.

    >>> find_choices(int | Literal["auto"]), find_choices(str)
    (('auto',), ())
    """
    expected, notes = strip_notes(expected)
    if is_union(expected):
        return tuple(choice for member in get_args(expected) for choice in find_choices(member))
    if get_origin(expected) is Literal:
        return get_args(expected)
    return tuple(name for note in notes if isinstance(note, OneOf) for name in note.names)


def describe_type(expected: Any, notation: Notation = PYTHON) -> str:
    """Return the name of a type for error messages.

    >>> describe_type(int | Literal["auto"]), describe_type(tuple[str, ...])
    ("an integer or 'auto'", 'a list of strings')
    """
    annotated, (expected, notes) = expected, strip_notes(expected)
    if expectation := next((note for note in notes if isinstance(note, Expected)), None):
        return expectation.text
    origin, arguments = get_origin(expected), get_args(expected)
    if is_union(expected):
        return " or ".join(dict.fromkeys(describe_type(member, notation) for member in arguments))
    if any(isinstance(note, Partial) for note in notes):
        known = [", ".join(note.find_types()) for note in notes if isinstance(note, Partial)]
        return f"{notation.table} of {' '.join(known)}"
    if origin is Literal or any(isinstance(note, OneOf) for note in notes):
        choices = [notation.show(choice) for choice in find_choices(annotated) if choice != ""]
        return choices[0] if len(choices) == 1 else "one of " + ", ".join(choices)
    if origin in (list, tuple):
        items = PLURAL_TYPE_NAMES.get(strip_notes(arguments[0])[0])
        if origin is tuple and arguments[-1] is not Ellipsis:
            return f"a list of {len(arguments)} {items or 'items'}"
        return f"a list of {items}" if items else f"a list, each {describe_type(arguments[0], notation)}"
    if origin is dict:
        items = PLURAL_TYPE_NAMES.get(strip_notes(arguments[1])[0])
        return f"{notation.table} of {items}" if items else notation.table
    if origin is CallableType:
        return "a function"
    if expected in (None, NoneType):
        return "None" if notation is PYTHON else "null"
    if expected is bool and notation is PYTHON:
        return "True or False"
    if notation is not PYTHON and hasattr(expected, "__dataclass_fields__"):
        return notation.table
    return TYPE_NAMES.get(expected) or f"a {expected.__name__}"


@dataclass(frozen=True)
class FieldInfo:
    """A field of a dataclass, with the information of its type, its notes and its metadata."""

    name: str  # of the attribute
    key: str  # in JSON and TOML: the name without a final underscore, as in `from_`
    type: Any  # with its notes
    scalar: Any  # int, float, str or bool if the type is one of them with limits at most, else None
    default: Any  # MISSING if the field has no default value
    is_required: bool
    description: str
    limits: Limits | None
    is_hidden: bool
    omits_empty: bool

    @property
    def choices(self) -> tuple[Any, ...]:
        """The named values that the field allows, if it names any."""
        return find_choices(self.type)


def find_fields(cls: type) -> tuple[FieldInfo, ...]:
    """Return the fields of a dataclass, in their order."""
    return _find_fields(cls)


@cache
def _find_fields(cls: type) -> tuple[FieldInfo, ...]:
    hints = get_type_hints(cls, include_extras=True)
    found = []
    for field in fields(cls):
        bare, notes = strip_notes(hints[field.name])
        is_scalar = bare in TYPE_NAMES and all(isinstance(note, Limits | str) for note in notes)
        default = field.default_factory() if field.default_factory is not MISSING else field.default
        found.append(
            FieldInfo(
                name=field.name,
                key=field.name.rstrip("_"),
                type=hints[field.name],
                scalar=bare if is_scalar else None,
                default=default,
                is_required=default is MISSING,
                description=next((note for note in notes if isinstance(note, str)), ""),
                limits=next((note for note in notes if isinstance(note, Limits)), None),
                is_hidden=field.metadata.get("hidden", False),
                omits_empty=field.metadata.get("omit_empty", False),
            )
        )
    return tuple(found)


def join_path(path: Path) -> str:
    """Return a path as text.

    >>> join_path(("messages", 0, "role"))
    'messages[0].role'
    """
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path).removeprefix(".")


def show_value(value: Any, notation: Notation) -> str:
    """Return a value for an error message, shortened if it is long."""
    try:
        return shorten(notation.show(value))
    except (ValueError, TypeError, RecursionError):  # such as an integer of thousands of digits
        return f"this {type(value).__name__}"


def list_differences(a: Any, b: Any) -> list[str]:
    """List the fields that differ between two instances of a dataclass, each as `name: value in a → value in b`."""
    pairs = {field.name: (getattr(a, field.name), getattr(b, field.name)) for field in fields(a)}
    return [f"{name}: {in_a!r} → {in_b!r}" for name, (in_a, in_b) in pairs.items() if in_a != in_b]
