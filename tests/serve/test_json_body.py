"""Bodies of requests that are not JSON are errors, and deep ones are read or refused."""

from dataclasses import dataclass
from typing import Any

import pytest

from qkv.serve.http.json_body import decode_json, encode_json
from qkv.values import InvalidValue, read


@dataclass(frozen=True)
class Holder:
    """An object with a field of any type."""

    text: str
    any: Any = None


@pytest.mark.parametrize("body", [b"{", b"NaN", b'{"a": Infinity}', b"\xff", b"[" * 100_000, b"1" * 10_000])
def test_a_body_that_is_not_json_is_an_error(body: bytes) -> None:
    with pytest.raises(InvalidValue, match="the body is"):
        decode_json(body)


@pytest.mark.parametrize("depth", [400, 2_000, 50_000])
def test_a_deep_value_is_read_or_an_error(depth: int) -> None:
    body = b'{"text": "a", "any": ' + b"[" * depth + b"]" * depth + b"}"
    if depth == 400:
        assert read(Holder, decode_json(body)).text == "a"
    else:
        with pytest.raises(InvalidValue, match="nested too deeply"):
            read(Holder, decode_json(body))


def test_a_response_has_no_nan() -> None:
    assert encode_json([Holder("é", (1.5, float("nan")))]) == '[{"text":"é","any":[1.5,null]}]'.encode()
