"""Tiny models of both families that write."""

import pytest
from decode_models import tiny

from qkv.models import Network


@pytest.fixture(params=["decoder", "seq2seq"])
def network(request: pytest.FixtureRequest) -> Network:
    return tiny(request.param)
