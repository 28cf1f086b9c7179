"""Tiny models of both families that write."""

import pytest
from decode_models import tiny

from qkv.decode.cpu import packed_linear as packed
from qkv.models import Network


@pytest.fixture(autouse=True)
def _nothing_is_small(monkeypatch: pytest.MonkeyPatch) -> None:
    """The models of these tests are tiny, and their weights are laid out anew all the same."""
    monkeypatch.setattr(packed, "MIN_PACKED_NUMEL", 0)


@pytest.fixture(params=["decoder", "seq2seq"])
def network(request: pytest.FixtureRequest) -> Network:
    return tiny(request.param)
