"""TOML: parse it with limits, parse a single value from a command line, and write values."""

import json
import re
import tomllib
from typing import Any

from qkv.errors import UsageError, shorten
from qkv.values import TOML, Reader

BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")
MAX_KEY_PARTS = 32
STRING_OR_COMMENT = re.compile(
    r'"""(?s:.)*?(?:"""|\Z)'
    r"|'''(?s:.)*?(?:'''|\Z)"
    r'|"(?:\\.|[^"\\\n])*"?'
    r"|'[^'\n]*'?"
    r"|#[^\n]*"
)
"""A string or a comment of TOML. A string that is not closed ends with its line, or with the file."""
NOT_IN_KEY = re.compile(r"[^\w. \t-]")  # a character that is not part of a dotted key


def parse_toml(text: str) -> dict[str, Any]:
    """Parse TOML. Raise a ValueError for wrong TOML, for deep nesting, and for integers of more than 64 bits.

    >>> parse_toml("a.b = [1, 2]")
    {'a': {'b': [1, 2]}}
    """
    outside_strings = STRING_OR_COMMENT.sub("_", text)
    if any(part.count(".") >= MAX_KEY_PARTS for part in NOT_IN_KEY.split(outside_strings)):
        raise ValueError(f"a key has more than {MAX_KEY_PARTS} parts")  # tomllib takes quadratic time for it
    try:
        table = tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        raise
    except ValueError:
        raise ValueError("an integer has thousands of digits") from None
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    _check_values(table)
    return table


def _check_values(value: Any) -> None:
    """Raise ValueError for an integer of more than 64 bits, and for a NUL in a text, at any depth."""
    if isinstance(value, dict):
        _check_values(list(value))
        _check_values(list(value.values()))
    elif isinstance(value, list):
        for item in value:
            _check_values(item)
    elif isinstance(value, int) and not -(2**63) <= value < 2**63:
        raise ValueError(f"the integer {shorten(str(value), 30)} has more than 64 bits")
    elif isinstance(value, str) and "\0" in value:
        raise ValueError(f"the text {shorten(repr(value), 60)} contains a NUL character")


def parse_value(text: str, expected: Any) -> Any:
    """Parse a value from a command line as TOML. For a text field, quotes are optional.

    >>> parse_value("1e-3", float), parse_value("runs/a", str), parse_value('["a", "b"]', tuple[str, ...])
    (0.001, 'runs/a', ['a', 'b'])
    """
    try:
        table = parse_toml(f"value = {text}")
    except ValueError:
        return text
    value = table["value"] if len(table) == 1 else text
    reader = Reader(TOML)
    return text if not reader.accepts(expected, value) and reader.accepts(expected, text) else value


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
