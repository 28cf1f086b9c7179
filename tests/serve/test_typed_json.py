"""Typed JSON: values of the right type are converted, others are errors that name the field, and schemas agree."""

from dataclasses import dataclass
from typing import Annotated, Any, Literal

import jsonschema_rs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from qkv.serve.http.json_schema import describe_schema
from qkv.serve.http.typed_json import InvalidJson, Limits, decode_json, from_json


@dataclass(frozen=True)
class Inner:
    """An object inside."""

    kind: Literal["a", "b"]
    weights: dict[str, float] | None = None


@dataclass(frozen=True)
class Outer:
    """An object with fields of all types."""

    text: Annotated[str, Limits(1, 5), "A short text."]
    count: Annotated[int, Limits(0, 10)] = 3
    share: Annotated[float, Limits(0, 1)] = 0.5
    flag: bool = False
    inner: Inner | None = None
    either: str | list[int] | None = None
    many: Annotated[list[Inner], Limits(0, 2)] | None = None


@dataclass(frozen=True)
class Holder:
    """An object with a field of any type."""

    text: str
    any: Any = None


def test_values_are_converted() -> None:
    given = {"text": "abc", "count": 4.0, "share": 1, "inner": {"kind": "b", "weights": {"x": 1}}, "either": [1, 2]}
    assert from_json(Outer, given) == Outer("abc", 4, 1.0, False, Inner("b", {"x": 1.0}), [1, 2])
    assert from_json(Outer, {"text": "a", "count": None}) == Outer("a")


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({}, "text: this field is required: a string"),
        ({"text": ""}, "text: 0 characters: must be at least 1 characters"),
        ({"text": "abcdef"}, "text: 6 characters: must be at most 5"),
        ({"text": "a", "cuont": 1}, "cuont: unknown field; did you mean 'count'?"),
        ({"text": "a", "count": True}, "count: expected an integer, got True"),
        ({"text": "a", "count": 2.5}, "count: expected an integer, got 2.5"),
        ({"text": "a", "share": 10**400}, "share: expected a number"),
        ({"text": "a", "inner": {"kind": "c"}}, 'inner.kind: expected "a" or "b"'),
        ({"text": "a", "inner": {"kind": "a", "weights": {"x": "y"}}}, "inner.weights.x: expected a number"),
        ({"text": "a", "many": [{"kind": "a"}, 3]}, r"many\[1\]: expected an object, got 3"),
        ({"text": "a", "either": [1, "x"]}, r"either\[1\]: expected an integer, got 'x'"),
        ({"text": "\ud800"}, "text: the string has a surrogate without its partner"),
        ([], "expected an object"),
    ],
)
def test_errors_name_the_field(value: Any, message: str) -> None:
    with pytest.raises(InvalidJson, match=message):
        from_json(Outer, value)


@pytest.mark.parametrize("body", [b"{", b"NaN", b'{"a": Infinity}', b"\xff", b"[" * 100_000, b"1" * 10_000])
def test_what_is_not_json_is_an_error(body: bytes) -> None:
    with pytest.raises(InvalidJson, match="the body is"):
        decode_json(body)


@pytest.mark.parametrize("depth", [400, 2_000, 50_000])
def test_a_deep_value_is_read_or_an_error(depth: int) -> None:
    body = b'{"text": "a", "any": ' + b"[" * depth + b"]" * depth + b"}"
    if depth == 400:
        assert from_json(Holder, decode_json(body)).text == "a"
    else:
        with pytest.raises(InvalidJson, match="nested too deeply"):
            from_json(Holder, decode_json(body))


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-2, 12) | st.floats(-1, 2) | st.sampled_from(["", "a", "abc", "abcdef"]),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["kind", "weights", "x"]), inner, max_size=3)
    ),
    max_leaves=6,
)


@given(st.dictionaries(st.sampled_from([*Outer.__dataclass_fields__, "other"]), JSON, max_size=4))
def test_the_schema_accepts_exactly_what_is_converted(value: dict[str, Any]) -> None:
    components: dict[str, Any] = {}
    schema = {**describe_schema(Outer, components), "components": {"schemas": components}}
    is_valid = jsonschema_rs.Draft202012Validator(schema).is_valid(value)
    try:
        from_json(Outer, value)
    except InvalidJson:
        assert not is_valid
    else:
        assert is_valid
