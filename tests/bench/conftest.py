"""Tiny models, and measuring made quick: small matrices, little memory, few batches. Times are never looked at."""

import sys
from collections.abc import Callable
from typing import Any

import pytest

import qkv

HEADS = {"lm": qkv.HeadConfig(kind="lm", outputs=30), "label": qkv.HeadConfig(kind="classify", outputs=3, pool="last")}


@pytest.fixture(scope="session")
def tiny() -> Callable[..., qkv.Model]:
    """A model by its family and head (an encoder always says labels), with other choices than the usual ones."""

    def make(family: str, head: str = "lm", **more: Any) -> qkv.Model:
        size = {"vocab_size": 30, "width": 16, "layers": 2, "heads": 2, "ffn_width": 24, "max_positions": 64}
        stack = qkv.StackConfig(**{**size, **more})
        sides: dict[str, Any] = {side: stack for side in ("encoder", "decoder") if family in (side, "seq2seq")}
        return qkv.new(qkv.Config(**sides, head=HEADS["label" if family == "encoder" else head], eos_token_ids=(1,)))

    return make


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    import qkv_bench  # noqa: F401

    limits, bench = sys.modules["qkv_bench.limits"], sys.modules["qkv_bench.throughput"]
    monkeypatch.setattr(limits, "UNCACHED_BYTES", {"cpu": 2**20})
    monkeypatch.setattr(limits, "MATRIX_SIZES", (32, 64))
    monkeypatch.setattr(bench, "PREFILL_LENGTHS", (4, 8, 4096))
    monkeypatch.setattr(bench, "ENCODE_LENGTH", 8)
    monkeypatch.setattr(bench, "SINGLE_PREFILL_LENGTH", 8)
    monkeypatch.setattr(bench, "MAX_BATCH_SIZE", {"cpu": 4})
