"""Single values: types, error messages, values from a command line, values in TOML."""

import math
import tomllib
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qkv.errors import UsageError
from qkv.train.recipe.schema import Files
from qkv.train.recipe.toml import format_key, format_value, parse_value
from qkv.values import TOML, InvalidValue, Reader, describe_type

TEXT = st.text(st.characters(exclude_categories=["Cs"]))
VALUES: st.SearchStrategy[Any] = st.recursive(
    st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats() | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=8,
)


def same(a: Any, b: Any) -> bool:
    """Equality that tells 1 from 1.0 and true, −0.0 from 0.0, and takes nan for nan."""
    if type(a) is not type(b):
        return False
    if isinstance(a, float):
        return (math.isnan(a) and math.isnan(b)) or (a == b and math.copysign(1, a) == math.copysign(1, b))
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(same(x, y) for x, y in zip(a, b, strict=True))
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    return bool(a == b)


@given(VALUES)
def test_a_value_written_as_toml_is_read_back(value: Any) -> None:
    assert same(tomllib.loads(f"x = {format_value(value)}")["x"], value)


@pytest.mark.parametrize("value", [None, [1, None], {"a": object()}])
def test_what_toml_does_not_know_is_told(value: Any) -> None:
    with pytest.raises(UsageError, match="cannot be a value in a recipe: write text, a number"):
        format_value(value)


@given(TEXT)
def test_a_name_written_as_a_key_is_read_back(name: str) -> None:
    assert tomllib.loads(f"{format_key(name)} = 1") == {name: 1}


@pytest.mark.parametrize(
    ("value", "kind", "expected"),
    [
        (3, int, 3),
        (3.0, int, 3),
        (True, int, None),
        (3, float, 3.0),
        (True, float, None),
        (3.5, int, None),
        ("a", str, "a"),
        ("auto", int | Literal["auto"], "auto"),
        ("car", int | Literal["auto"], None),
        (1, Literal["1"], None),
        (["a", "b"], tuple[str, ...], ("a", "b")),
        (["a", 1], tuple[str, ...], None),
        ([1, 2], tuple[float, ...], (1.0, 2.0)),
        ({"source": "a"}, Files, {"source": "a"}),
        ({"source": 1}, Files, None),
        (["a", "b"], Files, ("a", "b")),
        (1, Files, None),
    ],
)
def test_values_of_toml_are_converted_to_the_types_of_fields(value: Any, kind: Any, expected: Any) -> None:
    if expected is None:
        with pytest.raises(InvalidValue):
            Reader(TOML).read(kind, value)
    else:
        assert same(Reader(TOML).read(kind, value), expected)


def test_types_in_words() -> None:
    assert describe_type(Files, TOML) == "a string or a list of strings or a table of strings"
    assert describe_type(Literal["a", "b", ""]) == "one of 'a', 'b'"
    assert describe_type(bool, TOML) == "true or false"


@pytest.mark.parametrize(
    ("text", "kind", "expected"),
    [
        ("1e-3", float, 1e-3),
        ("2", float, 2.0),
        ("runs/a", str, "runs/a"),
        ("2024-01-01", str, "2024-01-01"),
        ("7", str, "7"),
        ("true", bool, True),
        ("yes", Literal["yes", "no"], "yes"),
        ('["a", "b"]', tuple[str, ...], ("a", "b")),
        ("1\nother = 2", str, "1\nother = 2"),
        ("", str, ""),
    ],
)
def test_what_is_typed_on_a_command_line(text: str, kind: Any, expected: Any) -> None:
    assert same(Reader(TOML).read(kind, parse_value(text, kind)), expected)
