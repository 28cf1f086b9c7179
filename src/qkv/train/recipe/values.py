"""Single values of a recipe: whether they are of their field's kind, what that kind is in words, and how TOML has them.

A field's kind is its type in `recipe.py`: numbers, text, named choices, lists, and tables of these.
"""

import json
import re
import tomllib
from types import UnionType
from typing import Any, Union, get_args, get_origin

from qkv.errors import UsageError
from qkv.values import matches_type

BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")


def coerce(value: Any, kind: Any) -> Any:
    """A value as TOML gives it, as its field has it: lists become tuples, and whole numbers become fractions."""
    if isinstance(value, list):
        inner = next((get_args(one)[0] for one in _options(kind) if get_origin(one) is tuple), Any)
        return tuple(coerce(one, inner) for one in value)
    if isinstance(value, dict):
        inner = next((get_args(one)[1] for one in _options(kind) if get_origin(one) is dict), Any)
        return {name: coerce(one, inner) for name, one in value.items()}
    whole = isinstance(value, int) and not isinstance(value, bool)
    return float(value) if whole and kind is float else value


def _options(kind: Any) -> tuple[Any, ...]:
    return get_args(kind) if get_origin(kind) in (Union, UnionType) else (kind,)


def parse_value(text: str, kind: Any) -> Any:
    """What somebody typed, as a value of a kind: read as TOML, or taken as it stands where that is what fits.

    >>> parse_value("1e-3", float), parse_value("runs/a", str), parse_value('["a", "b"]', tuple[str, ...])
    (0.001, 'runs/a', ('a', 'b'))
    """
    try:
        read = tomllib.loads(f"value = {text}")
        value = coerce(read["value"], kind) if len(read) == 1 else text
    except (tomllib.TOMLDecodeError, RecursionError):
        return text
    return text if not matches_type(value, kind) and matches_type(text, kind) else value


def format_value(value: Any) -> str:
    """A value as TOML writes it on one line.

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
        f"{value!r} has no place in a recipe: write text, a number, true or false, or a list or table of these; a key "
        "that is left out stays as it is"
    )


def format_key(name: str) -> str:
    """A name as TOML writes it: bare where it may be."""
    return name if BARE_KEY.fullmatch(name) else format_value(name)
