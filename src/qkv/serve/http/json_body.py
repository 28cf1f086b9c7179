"""The bodies of requests and responses: bytes to JSON values, and values to bytes."""

import json
from typing import Any

from qkv.errors import shorten
from qkv.values import InvalidValue, to_json


def decode_json(body: bytes) -> Any:
    """Parse JSON as its standard defines it: without NaN and infinities, with a bounded depth."""
    try:
        return json.loads(body.decode("utf-8"), parse_constant=_refuse_constant)
    except RecursionError:
        raise InvalidValue("the body is nested too deeply; send a flatter one") from None
    except ValueError as error:
        raise InvalidValue(f"the body is not JSON ({shorten(str(error))}); send a JSON object") from None


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not a JSON value")


def encode_json(value: Any) -> bytes:
    """Encode dataclasses, lists and dictionaries as compact JSON. NaN and infinities become null.

    UTF-8 has no surrogate without its partner, which an error message may repeat: it becomes an escape of JSON.
    """
    text = json.dumps(to_json(value), ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return text.encode("utf-8", "backslashreplace")
