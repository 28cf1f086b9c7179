"""Typed values: plain values from TOML, JSON, a command line or Python are checked against the types of dataclasses.

    @dataclass(frozen=True)
    class Point:
        x: Annotated[float, Limits(0, 10), "The distance from the left."]
        label: str = ""

    read(Point, {"x": 3})                  # Point(x=3.0, label='')
    read(Point, {"x": 30})                 # InvalidValue: x = 30.0 must be at most 10
    json_schema(Point)                     # the JSON schema of the same type
    to_json(Point(3.0))                    # {'x': 3.0, 'label': ''}

Recipes, model configs, options of tasks and bodies of HTTP requests use it. The types are str, int, float, bool, None,
`Literal`, unions, `list`, `tuple`, `dict` with string keys, `Any`, and dataclasses of these. `Annotated` adds `Limits`,
`OneOf` (names from a table that may grow) and a description. In Python, other classes and functions may be fields, too.
A field whose metadata is `HIDDEN` is not part of JSON; a field with `OMIT_EMPTY` is left out of JSON if it is empty.
"""

from qkv.values.reader import Reader, check, check_value, read
from qkv.values.schema import json_schema, to_json
from qkv.values.types import (
    HIDDEN,
    JSON,
    OMIT_EMPTY,
    PYTHON,
    TOML,
    Expected,
    FieldInfo,
    InvalidValue,
    Limits,
    Notation,
    OneOf,
    Partial,
    describe_type,
    find_fields,
    list_differences,
)

__all__ = [
    "HIDDEN",
    "JSON",
    "OMIT_EMPTY",
    "PYTHON",
    "TOML",
    "Expected",
    "FieldInfo",
    "InvalidValue",
    "Limits",
    "Notation",
    "OneOf",
    "Partial",
    "Reader",
    "check",
    "check_value",
    "describe_type",
    "find_fields",
    "json_schema",
    "list_differences",
    "read",
    "to_json",
]
