"""Random requests have documented responses. `fuzz_server.py` sends many more."""

from typing import Any

import pytest
from fuzz_server import MAX_TOKENS, fuzz
from serving import served


def test_random_requests_have_documented_responses(running: Any) -> None:
    with served(running.models, max_tokens=MAX_TOKENS) as (url, _):
        counts = fuzz(url, 88)
    assert set().union(*counts.values()) <= {200, 400, 404}
    assert sum(found[200] for found in counts.values()) > 6


def test_an_undocumented_response_would_be_found(running: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from qkv.serve.routes import operations

    monkeypatch.setattr(operations.ServedModelList, "__init__", lambda self, *_: None)
    with served(running.models, max_tokens=MAX_TOKENS) as (url, _), pytest.raises((AssertionError, BaseExceptionGroup)):
        fuzz(url, 11)
