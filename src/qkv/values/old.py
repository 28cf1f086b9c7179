"""Check values against the types that dataclass fields declare, and name these types in error messages.

Configs (`blocks/config.py`) and recipes (`train/recipe/`) are dataclasses whose values come from JSON, TOML or a
command line. Their fields are numbers, text, named choices (`Literal`), lists (`tuple`) and tables (`dict`) of these.
"""

from collections.abc import Mapping
from dataclasses import fields
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from qkv.errors import shorten

Bounds = tuple[float, float]
"""The smallest and the largest value of a number."""

TYPE_NAMES = {int: "a whole number", float: "a number", bool: "true or false", str: "text", type(None): "null"}
PLURAL_TYPE_NAMES = {int: "whole numbers", float: "numbers", str: "texts"}


def matches_type(value: Any, expected: Any) -> bool:
    """Whether a value has the expected type. An int is accepted as a float; a bool is not accepted as a number.

    >>> matches_type(3, float), matches_type(True, int), matches_type("ddp", Literal["ddp", "fsdp"])
    (True, False, True)
    >>> matches_type({"a": "b"}, dict[str, str]), matches_type((1, "a"), tuple[int, ...])
    (True, False)
    """
    origin, arguments = get_origin(expected), get_args(expected)
    if expected is Any:
        return True
    if origin in (Union, UnionType):
        return any(matches_type(value, one) for one in arguments)
    if origin is Literal:
        return isinstance(value, str) and value in arguments
    if origin is tuple:
        return isinstance(value, tuple) and all(matches_type(item, arguments[0]) for item in value)
    if origin is dict:
        return isinstance(value, dict) and all(
            isinstance(key, str) and matches_type(item, arguments[1]) for key, item in value.items()
        )
    if expected in (int, float):
        return isinstance(value, int if expected is int else int | float) and not isinstance(value, bool)
    return isinstance(value, expected)


def describe_type(expected: Any) -> str:
    """The name of a type in error messages.

    >>> describe_type(int | Literal["auto"]), describe_type(tuple[str, ...])
    ("a whole number or 'auto'", 'a list of texts')
    """
    origin, arguments = get_origin(expected), get_args(expected)
    if origin in (Union, UnionType):
        return " or ".join(describe_type(one) for one in arguments)
    if origin is Literal:
        choices = [repr(choice) for choice in arguments if choice != ""]
        return choices[0] if len(choices) == 1 else "one of " + ", ".join(choices)
    if origin is tuple:
        items = PLURAL_TYPE_NAMES.get(arguments[0])
        return f"a list of {items}" if items else f"a list, each {describe_type(arguments[0])}"
    if origin is dict:
        values = PLURAL_TYPE_NAMES.get(arguments[1])
        return f"a table of {values}" if values else "a table"
    return TYPE_NAMES.get(expected) or f"a {expected.__name__}"


def check_field_types(config: Any, list_fields: tuple[str, ...] = ()) -> None:
    """Raise ValueError if a field of a dataclass has the wrong type or is not one of its named choices.

    The fields in `list_fields` may be lists, which are converted to tuples, even in a frozen dataclass.
    """
    for name in list_fields:
        if isinstance(getattr(config, name), list):
            object.__setattr__(config, name, tuple(getattr(config, name)))
    hints = get_type_hints(type(config))
    for name in (field.name for field in fields(config)):
        value, expected = getattr(config, name), hints[name]
        if not matches_type(value, expected):
            raise ValueError(f"{name} = {shorten(repr(value))} must be {describe_type(expected)}")


def check_bounds(config: Any, bounds: Mapping[str, Bounds]) -> None:
    """Raise ValueError if a numeric field lies outside its bounds."""
    for name, limits in bounds.items():
        if problem := bounds_problem(name, getattr(config, name), limits):
            raise ValueError(problem)


def bounds_problem(name: str, value: float, bounds: Bounds) -> str:
    """The message for a number outside its bounds, or "". Infinity and NaN lie outside all bounds.

    >>> bounds_problem("steps", 3, (0, 10)), bounds_problem("steps", 30, (0, 10))
    ('', 'steps = 30 must be at most 10')
    """
    low, high = bounds
    if low <= value <= high:
        return ""
    return f"{name} = {shorten(repr(value))} must be " + (f"at least {low}" if value < low else f"at most {high}")


def list_differences(a: Any, b: Any) -> list[str]:
    """List the fields that differ between two instances of a dataclass, each as `name: value in a → value in b`."""
    pairs = {field.name: (getattr(a, field.name), getattr(b, field.name)) for field in fields(a)}
    return [f"{name}: {in_a!r} → {in_b!r}" for name, (in_a, in_b) in pairs.items() if in_a != in_b]
