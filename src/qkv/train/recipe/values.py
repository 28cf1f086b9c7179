"""Convert single values of a recipe: from TOML or a command line to the type of a field, and back to TOML."""

import json
import re
import tomllib
from types import UnionType
from typing import Any, Union, get_args, get_origin

from qkv.errors import UsageError
from qkv.values import matches_type

BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")


def coerce(value: Any, expected: Any) -> Any:
    """Convert a value from TOML to the type of its field: lists to tuples, and integers to floats if needed."""
    if isinstance(value, list):
        inner = next((get_args(one)[0] for one in _union_members(expected) if get_origin(one) is tuple), Any)
        return tuple(coerce(one, inner) for one in value)
    if isinstance(value, dict):
        inner = next((get_args(one)[1] for one in _union_members(expected) if get_origin(one) is dict), Any)
        return {name: coerce(one, inner) for name, one in value.items()}
    whole = isinstance(value, int) and not isinstance(value, bool)
    return float(value) if whole and expected is float else value


def _union_members(expected: Any) -> tuple[Any, ...]:
    return get_args(expected) if get_origin(expected) in (Union, UnionType) else (expected,)


def parse_value(text: str, expected: Any) -> Any:
    """Parse a value from a command line as TOML. For a text field, quotes are optional.

    >>> parse_value("1e-3", float), parse_value("runs/a", str), parse_value('["a", "b"]', tuple[str, ...])
    (0.001, 'runs/a', ('a', 'b'))
    """
    try:
        read = tomllib.loads(f"value = {text}")
        value = coerce(read["value"], expected) if len(read) == 1 else text
    except (tomllib.TOMLDecodeError, RecursionError):
        return text
    return text if not matches_type(value, expected) and matches_type(text, expected) else value


def format_value(value: Any) -> str:
    """Return a value as TOML on one line.

    >>> format_value((0.9, 0.98)), format_value({"source": "en"}), format_value(True)
    ('[0.9, 0.98]', '{source = "en"}', 'true')
    """
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, dict):
        return "{" + ", ".join(f"{format_key(name)} = {format_value(one)}" for name, one in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(format_value, value)) + "]"
    raise UsageError(
        f"{value!r} cannot be a value in a recipe: write text, a number, true or false, or a list or table of these; "
        "leave a key out to keep its default"
    )


def format_key(name: str) -> str:
    """Return a key as TOML, with quotes only if they are needed."""
    return name if BARE_KEY.fullmatch(name) else format_value(name)
