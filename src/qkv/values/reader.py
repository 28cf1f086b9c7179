"""Read plain values as typed values, and check the values of a dataclass. Errors name the field and allowed values."""

import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import is_dataclass
from functools import cache
from numbers import Integral, Real
from types import NoneType
from typing import Any, Literal, TypeVar, get_args, get_origin

from qkv.errors import shorten, suggest_name
from qkv.values.types import (
    JSON,
    PYTHON,
    TOML,
    FieldInfo,
    InvalidValue,
    Limits,
    Notation,
    OneOf,
    Partial,
    Path,
    describe_type,
    find_choices,
    find_fields,
    is_union,
    join_path,
    show_value,
    strip_notes,
)

T = TypeVar("T")
MAX_DEPTH = 500
"""The lists and tables in a value of any type may be nested up to this depth."""
TOO_DEEP = "the value is nested too deeply; make it flatter"


def read(expected: type[T], value: Any, path: str = "", *, notation: Notation = JSON) -> T:
    """Convert plain values to a type, such as a dataclass. `path` is the name of the value itself in errors.

    A field with a default may be missing or null. Unknown fields are errors. An integer may be written as 5.0.

    >>> read(dict[str, tuple[float, ...]], {"a": [1, 2]})
    {'a': (1.0, 2.0)}
    """
    try:
        result: T = Reader(notation).read(expected, value, (path,) if path else ())
    except RecursionError:
        raise InvalidValue(TOO_DEEP) from None
    return result


def check(instance: Any, path: str = "") -> None:
    """Raise `InvalidValue` if a field of a dataclass has a wrong type or is outside of its limits.

    Nothing is converted, except lists to tuples, even in a frozen dataclass.
    """
    cls: type = type(instance)
    known_valid = _find_valid_defaults(cls)
    for field in find_fields(cls):
        value = getattr(instance, field.name)
        if (value is field.default and field.name in known_valid) or _is_valid_scalar(field, value):
            continue
        checked = _Checker(PYTHON).read(field.type, value, (path, field.key) if path else (field.key,))
        if isinstance(value, list) and isinstance(checked, tuple):
            object.__setattr__(instance, field.name, checked)


@cache
def _find_valid_defaults(cls: type) -> frozenset[str]:
    """Return the fields whose defaults are valid. Most values are defaults, and need no check."""
    reader = _Checker(PYTHON)
    return frozenset(f.name for f in find_fields(cls) if not f.is_required and reader.accepts(f.type, f.default))


def _is_valid_scalar(field: FieldInfo, value: Any) -> bool:
    """Whether a value is surely valid: a fast answer for numbers, strings and flags."""
    is_right = type(value) is field.scalar or (field.scalar is float and type(value) is int)
    return is_right and (field.limits is None or not field.limits.find_problem(value))


def check_value(expected: Any, value: Any, name: str) -> None:
    """Raise `InvalidValue` if a single value in Python, such as an argument of a function, has a wrong type.

    >>> check_value(Annotated[int, Limits(1)], 0, "top")      # doctest: +SKIP
    InvalidValue: top = 0 must be at least 1
    """
    _Checker(PYTHON).read(expected, value, (name,))


class Reader:
    """Reads plain values. A subclass may know where a value is written, and what a misspelt key could mean."""

    def __init__(self, notation: Notation = JSON) -> None:
        self.notation = notation

    def locate(self, path: Path) -> str:
        """Return where a value is written, such as "recipe.toml:3: "; it starts the error message."""
        return ""

    def suggest(self, path: Path, name: str, known: Collection[str]) -> str:
        """Return a hint for an unknown key of the table at `path`."""
        return suggest_name(name, known)

    def fail(self, path: Path, problem: str) -> InvalidValue:
        """Return the error for the value at `path`."""
        return InvalidValue(f"{self.locate(path)}{problem}", join_path(path))

    def read(self, expected: Any, value: Any, path: Path = ()) -> Any:
        """Convert plain values to a type."""
        bare, notes = strip_notes(expected)
        if not self.has_type(expected, value):
            raise self._wrong_type(expected, value, path)
        if partial := next((note for note in notes if isinstance(note, Partial)), None):
            return self.read_table(partial.find_types(), value, path)
        is_sized = isinstance(value, str | list | tuple | dict)  # its size is checked before its items are converted
        converted = value if is_sized else self._convert(bare, value, path)
        for note in notes:
            if isinstance(note, Limits) and (problem := note.find_problem(converted)):
                shown = "" if problem.startswith("must have") else f" = {show_value(value, self.notation)}"
                raise self.fail(path, f"{join_path(path) or 'the value'}{shown} {problem}")
        return self._convert(bare, value, path) if is_sized else converted

    def accepts(self, expected: Any, value: Any) -> bool:
        """Whether a value can be read as a type."""
        try:
            self.read(expected, value)
        except InvalidValue:
            return False
        return True

    def read_table(self, fields: Mapping[str, Any], value: Mapping[str, Any], path: Path = ()) -> dict[str, Any]:
        """Convert the values of a table whose keys and types are `fields`. All keys may be missing."""
        for key in value:
            if key not in fields:
                shown = f"[{join_path(path)}]" if self.notation is TOML else join_path(path)
                inside = f" in {shown}" if path else ""
                hint = self.suggest(path, str(key), fields)
                raise self.fail((*path, key), f"unknown key {shorten(repr(key))}{inside}; {hint}")
        return {key: self.read(fields[key], item, (*path, key)) for key, item in value.items()}

    def read_dataclass(self, expected: type[T], value: Mapping[str, Any], path: Path = ()) -> T:
        """Convert a table to a dataclass."""
        fields = {field.key: field for field in find_fields(expected) if not field.is_hidden}
        given = {key: item for key, item in value.items() if item is not None or _needs_value(fields.get(key))}
        values = self.read_table({key: field.type for key, field in fields.items()}, given, path)
        for key, field in fields.items():
            if field.is_required and key not in values:
                name, kind = join_path((*path, key)), describe_type(field.type, self.notation)
                raise self.fail((*path, key), f"{name} is missing; it must be {kind}")
        return expected(**{fields[key].name: item for key, item in values.items()})

    def has_type(self, expected: Any, value: Any) -> bool:
        """Whether a value has the outer type that is expected. The items of lists and tables are not checked."""
        expected, notes = strip_notes(expected)
        origin = get_origin(expected)
        if any(isinstance(note, OneOf) for note in notes):
            tables = [note for note in notes if isinstance(note, OneOf)]
            return isinstance(value, str) and all(value in t.names or (t.optional and not value) for t in tables)
        if is_union(expected):
            return any(self.has_type(member, value) for member in get_args(expected))
        if origin is Literal:
            return any(value == choice and type(value) is type(choice) for choice in get_args(expected))
        if origin in (list, tuple):
            return isinstance(value, list | tuple)
        if origin is dict or expected is dict:
            return isinstance(value, dict) and all(isinstance(key, str) for key in value)
        if origin is Callable:
            return callable(value)
        if expected is Any or expected is object:
            return True
        if expected is None or expected is NoneType:
            return value is None
        if expected in (int, float):
            return not isinstance(value, bool) and self.is_number(value, expected)
        if is_dataclass(expected) and self.accepts_table(value):
            return True
        return isinstance(value, expected)

    def is_number(self, value: Any, expected: type) -> bool:
        """Whether a number is finite and, if an integer is expected, whole."""
        if not isinstance(value, Real):
            return False
        try:
            return math.isfinite(value) and (
                expected is float or isinstance(value, Integral) or float(value).is_integer()
            )
        except OverflowError:  # an integer that is too large for a float
            return expected is int

    def accepts_table(self, value: Any) -> bool:
        """Whether a value is a table, which can become a dataclass."""
        return isinstance(value, Mapping)

    def _convert(self, expected: Any, value: Any, path: Path) -> Any:
        """Convert a value of the right outer type."""
        origin, arguments = get_origin(expected), get_args(expected)
        if is_union(expected):
            return self._convert_union(arguments, value, path)
        if origin in (list, tuple):
            types = arguments if origin is tuple and arguments[-1] is not Ellipsis else arguments[:1] * len(value)
            if len(types) != len(value):
                raise self._wrong_type(expected, value, path)
            items = [self.read(kind, item, (*path, i)) for i, (kind, item) in enumerate(zip(types, value, strict=True))]
            return items if origin is list else tuple(items)
        if origin is dict:
            return {
                key: self.read(arguments[1], item, (*path, self._check_text(key, path))) for key, item in value.items()
            }
        if is_dataclass(expected) and self.accepts_table(value):
            return self.read_dataclass(expected, value, path)  # type: ignore[arg-type]
        if expected is Any:
            self._check_any(value, path)
            return value
        if isinstance(value, str):
            return self._check_text(value, path)
        return expected(value) if expected in (int, float) else value

    def _convert_union(self, members: tuple[Any, ...], value: Any, path: Path) -> Any:
        """Return the value as the first member that it matches, or raise the error of the only member of its type."""
        errors = []
        for member in members:
            if self.has_type(member, value):
                try:
                    return self.read(member, value, path)
                except InvalidValue as error:
                    errors.append(error)
        raise errors[0] if len(errors) == 1 else self._wrong_type(members, value, path)

    def _check_any(self, value: Any, path: Path) -> None:
        """Check the strings in a value of any type, and its depth."""
        waiting = [(value, path)]
        while waiting:
            item, here = waiting.pop()
            if len(here) > MAX_DEPTH:
                raise self.fail(path, TOO_DEEP)
            if isinstance(item, str):
                self._check_text(item, here)
            elif isinstance(item, dict):
                waiting += [(inner, (*here, self._check_text(key, here))) for key, inner in item.items()]
            elif isinstance(item, list):
                waiting += [(inner, (*here, i)) for i, inner in enumerate(item)]

    def _check_text(self, text: str, path: Path) -> str:
        if not text.isascii():
            try:
                text.encode("utf-8")
            except UnicodeEncodeError:
                problem = "has a surrogate without its partner; send valid Unicode"
                raise self.fail(path, f"{join_path(path) or 'the value'} {problem}") from None
        return text

    def _wrong_type(self, expected: Any, value: Any, path: Path) -> InvalidValue:
        kinds = expected if isinstance(expected, tuple) else (expected,)
        wanted = " or ".join(describe_type(kind, self.notation) for kind in kinds)
        choices = [str(choice) for kind in kinds for choice in find_choices(kind)]
        hint = suggest_name(value, choices) if isinstance(value, str) and choices else ""
        hint = f"; {hint}" if hint.startswith("did you mean") else ""
        if isinstance(value, float) and not math.isfinite(value):
            wanted = wanted.replace("a number", "a finite number")
        name = f"{join_path(path)} = " if path else ""
        return self.fail(path, f"{name}{show_value(value, self.notation)} must be {wanted}{hint}")


def _needs_value(field: FieldInfo | None) -> bool:
    """Whether None is not the same as no value. For an unknown field it is not, so that it is reported."""
    return field is None or field.is_required


class _Checker(Reader):
    """Checks values in Python, and returns them as they are. Only lists become tuples."""

    def is_number(self, value: Any, expected: type) -> bool:
        return isinstance(value, Integral if expected is int else Real)  # limits exclude infinity and NaN

    def accepts_table(self, value: Any) -> bool:
        return False

    def _convert(self, expected: Any, value: Any, path: Path) -> Any:
        is_plain = expected is Any or (isinstance(value, str | Real) and not is_union(expected))
        return value if is_plain else super()._convert(expected, value, path)

    def _check_text(self, text: str, path: Path) -> str:
        return text
