"""Typed values: values are converted or refused with the place and the remedy, and JSON schemas agree."""

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

import jsonschema_rs
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from qkv.tables import OpenTable
from qkv.values import (
    HIDDEN,
    OMIT_EMPTY,
    TOML,
    InvalidValue,
    Limits,
    OneOf,
    Reader,
    check,
    check_value,
    describe_type,
    find_fields,
    json_schema,
    read,
    to_json,
)

COLOURS = OpenTable("colour", {"red": 1, "green": 2})


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
    share: Annotated[float, Limits(0, below=1)] = 0.5
    flag: bool = False
    inner: Inner | None = None
    either: str | list[int] | None = None
    many: Annotated[list[Inner], Limits(0, 2)] | None = None
    pair: tuple[int, int] = (0, 1)
    names: tuple[str, ...] = ()
    colour: Annotated[str, OneOf(COLOURS, optional=True)] = ""
    any: Any = None
    from_: int | Literal["auto"] = "auto"


GOOD = {
    "text": "abc",
    "count": 4.0,
    "share": 0,
    "inner": {"kind": "b", "weights": {"x": 1}},
    "either": [1, 2],
    "pair": [3, 4],
    "names": ["x"],
    "colour": "red",
    "any": {"deep": [1, None]},
    "from": 3,
}


def test_values_are_converted() -> None:
    expected = Outer(
        text="abc",
        count=4,
        share=0.0,
        inner=Inner("b", {"x": 1.0}),
        either=[1, 2],
        pair=(3, 4),
        names=("x",),
        colour="red",
        any={"deep": [1, None]},
        from_=3,
    )
    found = read(Outer, GOOD)
    assert found == expected
    assert [type(value) for value in (found.count, found.share, found.pair, found.names)] == [int, float, tuple, tuple]
    assert read(Outer, {"text": "a", "count": None}) == Outer("a")


def test_json_is_read_back() -> None:
    assert read(Outer, json.loads(json.dumps(to_json(read(Outer, GOOD))))) == read(Outer, GOOD)


WRONG: list[tuple[Any, str, str]] = [
    ({}, "text", "text is missing; it must be a string"),
    ({"text": None}, "text", "text = null must be a string"),
    ({"text": ""}, "text", "text must have at least 1 character, and has 0"),
    ({"text": "abcdef"}, "text", "text must have at most 5 characters, and has 6; shorten it"),
    ({"text": "a", "cuont": 1}, "cuont", "unknown key 'cuont'; did you mean 'count'?"),
    ({"text": "a", "from_": 1}, "from_", "unknown key 'from_'; did you mean 'from'?"),
    ({"text": "a", "count": True}, "count", "count = true must be an integer"),
    ({"text": "a", "count": 2.5}, "count", "count = 2.5 must be an integer"),
    ({"text": "a", "count": 11}, "count", "count = 11 must be at most 10"),
    ({"text": "a", "count": -1.0}, "count", "count = -1.0 must be at least 0"),
    ({"text": "a", "share": 1}, "share", "share = 1 must be below 1"),
    ({"text": "a", "share": float("nan")}, "share", "share = NaN must be a finite number"),
    ({"text": "a", "share": 10**400}, "share", "must be a number"),
    ({"text": "a", "count": 10**5000}, "count", "count = this int must be at most 10"),
    ({"text": "a", "inner": {"kind": "c"}}, "inner.kind", 'inner.kind = "c" must be one of "a", "b"'),
    ({"text": "a", "inner": {"kind": "a", "kinds": 1}}, "inner.kinds", "unknown key 'kinds' in inner; did you mean"),
    ({"text": "a", "inner": {"kind": "a", "weights": {"x": "y"}}}, "inner.weights.x", 'x = "y" must be a number'),
    ({"text": "a", "many": [{"kind": "a"}, 3]}, "many[1]", "many[1] = 3 must be an object"),
    ({"text": "a", "many": [{"kind": "a"}] * 3}, "many", "many must have at most 2 items, and has 3; leave some out"),
    ({"text": "a", "either": [1, "x"]}, "either[1]", 'either[1] = "x" must be an integer'),
    ({"text": "a", "either": 1}, "either", "either = 1 must be a string or a list of integers or null"),
    ({"text": "a", "pair": [1]}, "pair", "pair = [1] must be a list of 2 integers"),
    ({"text": "a", "colour": "gren"}, "colour", 'must be one of "red", "green"; did you mean \'green\'?'),
    ({"text": "a", "from": "atuo"}, "from", "must be an integer or \"auto\"; did you mean 'auto'?"),
    ({"text": "\ud800"}, "text", "text has a surrogate without its partner"),
    ({"text": "a", "any": [{"b": "\ud800"}]}, "any[0].b", "any[0].b has a surrogate"),
    ({"text": "a", "\ud800": 1}, "\ud800", r"unknown key '\ud800'"),
    ([], "", "[] must be an object"),
]


@pytest.mark.parametrize(("value", "path", "message"), WRONG)
def test_errors_name_the_field_the_value_and_the_remedy(value: Any, path: str, message: str) -> None:
    with pytest.raises(InvalidValue) as error:
        read(Outer, value)
    assert message in str(error.value)
    assert error.value.path == path
    str(error.value).encode()


def test_errors_say_where_a_value_is_written() -> None:
    class FileReader(Reader):
        def locate(self, path: tuple[str | int, ...]) -> str:
            return f"r.toml:{len(path)}: "

        def suggest(self, path: tuple[str | int, ...], name: str, known: Any) -> str:
            return "it belongs in [train]"

    reader = FileReader(TOML)
    with pytest.raises(InvalidValue, match=r"^r\.toml:2: inner\.kind = 3 must be one of"):
        reader.read(Outer, {"text": "a", "inner": {"kind": 3}})
    with pytest.raises(InvalidValue, match=r"^r\.toml:1: unknown key 'lr'; it belongs in \[train\]$"):
        reader.read(Outer, {"lr": 3})
    with pytest.raises(InvalidValue, match=r"^r\.toml:1: inner = 3 must be a table or null"):
        reader.read(Outer, {"text": "a", "inner": 3})


def test_a_name_that_is_registered_later_is_accepted_and_listed() -> None:
    with pytest.raises(InvalidValue):
        read(Outer, {"text": "a", "colour": "blue"})
    COLOURS.register("blue", 3)
    try:
        assert read(Outer, {"text": "a", "colour": "blue"}).colour == "blue"
        assert "blue" in describe_type(Annotated[str, OneOf(COLOURS)])
        assert json_schema(Annotated[str, OneOf(COLOURS)])["enum"] == ["red", "green", "blue"]
    finally:
        COLOURS.unregister("blue")


# -------------------------------------------------------------------- values in Python


@dataclass(frozen=True)
class Settings:
    """Fields that JSON does not have, too."""

    count: Annotated[int, Limits(1, 10)] = 1
    share: Annotated[float, Limits(0, 1)] = 0.5
    ids: tuple[int, ...] = ()
    mode: Literal["fast", "slow"] = "fast"
    size: Annotated[int, Limits(0, 9)] | Literal["auto"] = "auto"
    hook: Callable[[int], int] | None = None
    inner: Inner | None = None


def test_values_in_python_are_checked_and_kept() -> None:
    settings = Settings(count=np.int64(3), share=1, ids=[1, 2], hook=abs, inner=Inner("a"))  # type: ignore[arg-type]
    check(settings)
    assert type(settings.share) is int
    assert settings.ids == (1, 2)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"count": "1"}, "options.count = '1' must be an integer"),
        ({"count": 2.0}, "options.count = 2.0 must be an integer"),
        ({"count": True}, "options.count = True must be an integer"),
        ({"count": 0}, "options.count = 0 must be at least 1"),
        ({"share": float("nan")}, "options.share = nan must be at least 0"),
        ({"share": float("inf")}, "options.share = inf must be at most 1"),
        ({"ids": (1, 0.5)}, r"options.ids\[1\] = 0.5 must be an integer"),
        ({"ids": "12"}, "options.ids = '12' must be a list of integers"),
        ({"mode": "fats"}, "options.mode = 'fats' must be one of 'fast', 'slow'; did you mean 'fast'?"),
        ({"size": 10}, "options.size = 10 must be at most 9"),
        ({"hook": 3}, "options.hook = 3 must be a function or None"),
        ({"inner": {"kind": "a"}}, "options.inner = {'kind': 'a'} must be a Inner or None"),
    ],
)
def test_wrong_values_in_python(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        check(Settings(**values), "options")


def test_a_single_argument_is_checked() -> None:
    check_value(Annotated[int, Limits(1)], 3, "top")
    with pytest.raises(InvalidValue, match=r"^top = 0 must be at least 1$"):
        check_value(Annotated[int, Limits(1)], 0, "top")
    with pytest.raises(InvalidValue, match=r"^stream = 'yes' must be True or False$"):
        check_value(bool, "yes", "stream")


# -------------------------------------------------------------------- fields, schemas and JSON


@dataclass(frozen=True)
class Result:
    """A result with fields that JSON does not show."""

    text: str
    notes: Annotated[tuple[str, ...], "What the reader should know."] = field(default=(), metadata=OMIT_EMPTY)
    score: Annotated[float | None, Limits(0, 1)] = field(default=None, metadata=OMIT_EMPTY)
    ids: list[int] = field(default_factory=list, metadata=HIDDEN)


def test_hidden_fields_and_empty_fields_are_not_part_of_json() -> None:
    assert to_json(Result("a", ids=[1])) == {"text": "a"}
    assert to_json([Result("a", ("b",), 0.0)]) == [{"text": "a", "notes": ["b"], "score": 0.0}]
    schema = json_schema(Result)["$defs"]["Result"]
    assert list(schema["properties"]) == ["text", "notes", "score"]
    assert schema["required"] == ["text"]
    assert schema["properties"]["notes"]["description"] == "What the reader should know."
    with pytest.raises(InvalidValue, match="unknown key 'ids'"):
        read(Result, {"text": "a", "ids": [1]})


def test_fields_are_described() -> None:
    fields = {info.name: info for info in find_fields(Outer)}
    assert fields["text"].description == "A short text."
    assert fields["text"].limits == Limits(1, 5)
    assert fields["text"].is_required
    assert (fields["count"].is_required, fields["count"].default) == (False, 3)
    assert fields["colour"].choices == ("red", "green")
    assert (fields["from_"].key, fields["from_"].choices) == ("from", ("auto",))
    assert [info.is_hidden for info in find_fields(Result)] == [False, False, False, True]
    assert [info.omits_empty for info in find_fields(Result)] == [False, True, True, False]


JSON_VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-2, 12)
    | st.floats(-1, 2)
    | st.sampled_from(["", "a", "abc", "abcdef", "red", "auto"]),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["kind", "weights", "x"]), inner, max_size=3)
    ),
    max_leaves=6,
)


@given(st.dictionaries(st.sampled_from([*(info.key for info in find_fields(Outer)), "other"]), JSON_VALUES, max_size=4))
@pytest.mark.parametrize("is_openapi", [True, False])
def test_the_schema_accepts_exactly_the_values_that_are_read(is_openapi: bool, value: dict[str, Any]) -> None:
    components: dict[str, Any] = {}
    schema = json_schema(Outer, components) if is_openapi else json_schema(Outer)
    schema |= {"components": {"schemas": components}}
    is_valid = jsonschema_rs.Draft202012Validator(schema).is_valid(value)
    try:
        read(Outer, value)
    except InvalidValue:
        assert not is_valid
    else:
        assert is_valid
