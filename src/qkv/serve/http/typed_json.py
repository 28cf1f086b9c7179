"""JSON with types: dataclasses check the JSON of requests. `json_schema.py` describes them as JSON schemas.

    @dataclass(frozen=True)
    class Point:
        x: Annotated[float, Limits(0, 10), "The distance from the left."]
        label: str = ""

    from_json(Point, {"x": 3})       # Point(x=3.0, label='')

A field with a default may be left out or null. Unknown fields are errors.
"""

import json
import math
from dataclasses import MISSING, Field, dataclass, fields, is_dataclass
from functools import cache
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from qkv.errors import shorten, suggest_name

T = TypeVar("T")

NAMES = {str: "a string", int: "an integer", float: "a number", bool: "true or false", NoneType: "null"}
TOO_DEEP = "the body is nested too deeply; send a flatter one"


class InvalidJson(ValueError):
    """A value that does not have the type of its field. `path` is the field, such as "messages[0].role"."""

    def __init__(self, path: str, message: str) -> None:
        super().__init__(f"{path}: {message}" if path else message)
        self.path = path


@dataclass(frozen=True)
class Limits:
    """The limits of a field: of a number, of the characters of a string, or of the items of a list or an object."""

    minimum: float | None = None
    maximum: float | None = None

    def check(self, value: Any, path: str) -> None:
        """Raise an error if the value or its length is outside the limits. Null has no limits."""
        if value is None:
            return
        if isinstance(value, str | list | dict):
            size, unit = len(value), "characters" if isinstance(value, str) else "entries"
        else:
            size, unit = value, ""
        for limit, word in ((self.minimum, "least"), (self.maximum, "most")):
            if limit is not None and (size < limit if word == "least" else size > limit):
                shown = f"{size:,} {unit}" if unit else shorten(repr(size))
                raise InvalidJson(path, f"{shown}: must be at {word} {limit:,} {unit}".rstrip())

    def to_schema(self, schema: dict[str, Any]) -> dict[str, Any]:
        """The limits as keywords of JSON schema, in every alternative that they apply to."""
        if "anyOf" in schema:
            return {**schema, "anyOf": [self.to_schema(one) for one in schema["anyOf"]]}
        suffix = {"string": "Length", "array": "Items", "object": "Properties"}.get(schema.get("type", "$ref"), "imum")
        if schema.get("type") in (None, "boolean", "null"):
            return schema
        limits = {f"min{suffix}": self.minimum, f"max{suffix}": self.maximum}
        return {**schema, **{name: limit for name, limit in limits.items() if limit is not None}}


def decode_json(body: bytes) -> Any:
    """Parse JSON as its standard defines it: without NaN and infinities, with a bounded depth."""
    try:
        return json.loads(body.decode("utf-8"), parse_constant=_refuse_constant)
    except RecursionError:
        raise InvalidJson("", TOO_DEEP) from None
    except ValueError as error:
        raise InvalidJson("", f"the body is not JSON ({shorten(str(error))}); send a JSON object") from None


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not a JSON value")


def from_json(expected: type[T], value: Any) -> T:
    """Convert JSON values to a dataclass. Raises `InvalidJson` with the path of the first wrong field."""
    try:
        result: T = _convert(expected, value, "")
    except RecursionError:
        raise InvalidJson("", TOO_DEEP) from None
    return result


def _convert(expected: Any, value: Any, path: str) -> Any:
    origin, arguments = get_origin(expected), get_args(expected)
    if origin is Annotated:
        converted = _convert(arguments[0], value, path)
        for limits in arguments[1:]:
            if isinstance(limits, Limits):
                limits.check(converted, path)
        return converted
    if expected is Any:
        _check_any(value, path)
        return value
    if origin in (Union, UnionType):
        return _convert_union(arguments, value, path)
    if not _has_json_type(expected, value):
        raise InvalidJson(path, f"expected {_name(expected)}, got {_show(value)}")
    if is_dataclass(expected):
        return _convert_dataclass(expected, value, path)
    if origin is list:
        return [_convert(arguments[0], item, f"{path}[{i}]") for i, item in enumerate(value)]
    if origin is dict:
        return {key: _convert(arguments[1], item, f"{path}.{key}") for key, item in value.items()}
    if expected is str:
        _check_any(value, path)
    return expected(value) if expected in (int, float) else value


def _convert_union(alternatives: tuple[Any, ...], value: Any, path: str) -> Any:
    """The first alternative that matches; else the error of the only one that has the right type of JSON."""
    errors = []
    for one in alternatives:
        if _has_json_type(one, value):
            try:
                return _convert(one, value, path)
            except InvalidJson as error:
                errors.append(error)
    if len(errors) == 1:
        raise errors[0]
    raise InvalidJson(path, f"expected {' or '.join(map(_name, alternatives))}, got {_show(value)}")


def _convert_dataclass(expected: Any, value: dict[str, Any], path: str) -> Any:
    hints, known = find_hints(expected), {field.name: field for field in fields(expected)}
    for name in value:
        if name not in known:
            raise InvalidJson(_join(path, shorten(name)), f"unknown field; {suggest_name(name, known)}")
    arguments = {}
    for name, field in known.items():
        if value.get(name) is None and not is_required(field):
            continue
        if name not in value:
            raise InvalidJson(_join(path, name), f"this field is required: {_name(hints[name])}")
        arguments[name] = _convert(hints[name], value[name], _join(path, name))
    return expected(**arguments)


def _has_json_type(expected: Any, value: Any) -> bool:
    """Whether a value has the type of JSON that is expected, without a look at what is inside it."""
    origin = get_origin(expected)
    if origin is Annotated:
        return _has_json_type(get_args(expected)[0], value)
    if origin in (Union, UnionType):
        return any(_has_json_type(one, value) for one in get_args(expected))
    if origin is Literal:
        return isinstance(value, str) and value in get_args(expected)
    if origin is dict or is_dataclass(expected):
        return isinstance(value, dict)
    if origin is list:
        return isinstance(value, list)
    if expected is Any:
        return True
    if expected is int:  # 5.0 is an integer of JSON schema
        return (isinstance(value, int) and not isinstance(value, bool)) or (
            isinstance(value, float) and value.is_integer()
        )
    if expected is float:
        return isinstance(value, int | float) and not isinstance(value, bool) and _is_finite(value)
    return isinstance(value, expected)


def _is_finite(value: float) -> bool:
    try:
        return math.isfinite(value)
    except OverflowError:  # an integer that is too large for a float
        return False


def _check_any(value: Any, path: str) -> None:
    """Raise an error for a string that is not valid Unicode, here or in any list or object inside."""
    if isinstance(value, str):
        try:
            value.encode("utf-8")
        except UnicodeEncodeError:
            raise InvalidJson(path, "the string has a surrogate without its partner; send valid Unicode") from None
    elif isinstance(value, dict):
        for key, item in value.items():
            _check_any(key, path)
            _check_any(item, path)
    elif isinstance(value, list):
        for item in value:
            _check_any(item, path)


def is_required(field: Field[Any]) -> bool:
    """Whether a field has no default."""
    return field.default is MISSING and field.default_factory is MISSING


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


@cache
def find_hints(expected: Any) -> dict[str, Any]:
    """The types of the fields of a dataclass, with their limits and descriptions."""
    return get_type_hints(expected, include_extras=True)


def _name(expected: Any) -> str:
    origin, arguments = get_origin(expected), get_args(expected)
    if origin is Annotated:
        return _name(arguments[0])
    if origin in (Union, UnionType):
        return " or ".join(map(_name, arguments))
    if origin is Literal:
        return " or ".join(f'"{one}"' for one in arguments)
    if origin is list:
        return f"a list ({_name(arguments[0])})"
    return NAMES.get(expected, "an object")


def _show(value: Any) -> str:
    return shorten(ascii(value))
