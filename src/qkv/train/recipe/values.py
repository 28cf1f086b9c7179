"""Single values of a recipe: whether they are of their field's kind, what that kind is in words, and how TOML has them.

A field's kind is its type in `recipe.py`: numbers, text, named choices, lists, and tables of these.
"""

import json
import re
import tomllib
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin

from qkv.errors import UsageError

BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")


def matches_type(value: Any, kind: Any) -> bool:
    """Whether a value is of a kind.

    >>> fits(3, float), fits(True, int), fits("ddp", Literal["ddp", "fsdp"]), fits({"a": "b"}, dict[str, str])
    (True, False, True, True)
    """
    origin, inner = get_origin(kind), get_args(kind)
    if kind is Any:
        return True
    if origin in (Union, UnionType):
        return any(matches_type(value, one) for one in inner)
    if origin is Literal:
        return isinstance(value, str) and value in inner
    if origin is tuple:
        return isinstance(value, tuple) and all(matches_type(one, inner[0]) for one in value)
    if origin is dict:
        return isinstance(value, dict) and all(
            isinstance(k, str) and matches_type(v, inner[1]) for k, v in value.items()
        )
    if kind in (int, float):
        return isinstance(value, int if kind is int else int | float) and not isinstance(value, bool)
    return isinstance(value, kind)


def describe_type(kind: Any) -> str:
    """What a kind is, for a message.

    >>> in_words(int | Literal["auto"]), in_words(tuple[str, ...])
    ("a whole number or 'auto'", 'a list, each text')
    """
    origin, inner = get_origin(kind), get_args(kind)
    if origin in (Union, UnionType):
        return " or ".join(describe_type(one) for one in inner)
    if origin is Literal:
        choices = ", ".join(repr(choice) for choice in inner if choice != "")
        return f"one of {choices}" if "," in choices else choices
    if origin is tuple:
        return f"a list, each {describe_type(inner[0])}"
    if origin is dict:
        return "a table" if inner[1] is Any or get_origin(inner[1]) else f"a table, each {describe_type(inner[1])}"
    words = {int: "a whole number", float: "a number", bool: "true or false", str: "text", type(None): "left out"}
    return words.get(kind) or f"a table of {kind.__name__}"


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

    >>> parsed("1e-3", float), parsed("runs/a", str), parsed("7", str), parsed('["a", "b"]', tuple[str, ...])
    (0.001, 'runs/a', '7', ('a', 'b'))
    """
    try:
        read = tomllib.loads(f"value = {text}")
        value = coerce(read["value"], kind) if len(read) == 1 else text
    except (tomllib.TOMLDecodeError, RecursionError):
        return text
    return text if not matches_type(value, kind) and matches_type(text, kind) else value


def format_value(value: Any) -> str:
    """A value as TOML writes it on one line.

    >>> toml_of((0.9, 0.98)), toml_of({"source": "en"}), toml_of(True)
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
