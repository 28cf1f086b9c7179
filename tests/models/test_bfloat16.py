"""Whether bfloat16 runs is found out by a process that may die of it."""

import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from qkv.blocks import HeadConfig, StackConfig
from qkv.models import Config, build
from qkv.models import bfloat16 as half
from qkv.models.bfloat16 import supports_bfloat16


@pytest.fixture(autouse=True)
def forgotten(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A processor that lists AMX, without a limit in the environment."""
    monkeypatch.delenv(half.ISA_VARIABLE, raising=False)
    monkeypatch.setattr(half, "cpu_flags", lambda: {"avx512_bf16", "amx_bf16"})
    supports_bfloat16.cache_clear()
    yield
    supports_bfloat16.cache_clear()


@pytest.mark.parametrize(
    ("tried", "runs"),
    [
        ("pass", True),
        ("import os, signal; os.kill(os.getpid(), signal.SIGILL)", False),
        ("assert 1 == 2", False),
    ],
)
def test_what_the_process_says_counts(tried: str, runs: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(half, "_PROBE", tried)
    assert supports_bfloat16() is runs


@pytest.mark.parametrize("error", [OSError("no memory"), subprocess.TimeoutExpired("python", 1)])
def test_a_process_that_cannot_be_had_is_a_no(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*args: Any, **kwargs: Any) -> None:
        raise error

    monkeypatch.setattr(subprocess, "run", fails)
    assert supports_bfloat16() is False


def test_it_is_asked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[list[str]] = []
    real = subprocess.run

    def counting(command: list[str], **kwargs: Any) -> Any:
        asked.append(command)
        return real([sys.executable, "-c", "pass"], **kwargs)

    monkeypatch.setattr(subprocess, "run", counting)
    assert supports_bfloat16() is supports_bfloat16() is True
    assert len(asked) == 1
    assert "bfloat16" in asked[0][-1]


@pytest.mark.parametrize(
    ("flags", "runs", "expected", "tried"),
    [
        ("fpu avx2 avx512f", True, False, False),  # emulated
        ("avx512f avx512_bf16", False, True, False),
        ("asimd bf16", False, True, False),
        ("avx512_bf16 amx_bf16", True, True, True),
        ("avx512_bf16 amx_bf16", False, False, True),  # an illegal instruction
    ],
)
def test_only_amx_is_tried(
    flags: str, runs: bool, expected: bool, tried: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = []

    def run(command: list[str], **options: object) -> subprocess.CompletedProcess[bytes]:
        calls.append(command)
        return subprocess.CompletedProcess(command, 0 if runs else -4)

    monkeypatch.delenv(half.ISA_VARIABLE, raising=False)
    monkeypatch.setattr(half, "cpu_flags", lambda: set(flags.split()))
    monkeypatch.setattr(subprocess, "run", run)
    assert half.has_bfloat16_instructions() == expected
    assert bool(calls) == tried


@pytest.mark.parametrize(
    ("limit", "expected"),
    [("AVX2", False), ("avx512_core", False), ("AVX512_CORE_BF16", True), ("AVX512_CORE_AMX", True), ("ALL", True)],
)
def test_a_limit_of_onednn_without_bfloat16_counts(limit: str, expected: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(half.ISA_VARIABLE, limit)
    monkeypatch.setattr(half, "cpu_flags", lambda: {"avx512_bf16"})
    assert half.has_bfloat16_instructions() == expected


def test_a_copy_shares_nothing_and_keeps_tied_weights_tied() -> None:
    stack = StackConfig(vocab_size=9, width=8, layers=1, heads=2, ffn_width=8)
    network = build(Config(decoder=stack, head=HeadConfig(kind="lm", outputs=9, tied=True)))
    made = half.bfloat16_copy(network)
    assert {p.dtype for p in made.parameters()} == {torch.bfloat16}
    assert {p.dtype for p in network.parameters()} == {torch.float32}
    assert len(list(made.parameters())) == len(list(network.parameters()))
    for one, other in zip(made.parameters(), network.parameters(), strict=True):
        assert one.data_ptr() != other.data_ptr()
        torch.testing.assert_close(one.float(), other, rtol=2**-8, atol=0)
