"""Whether bfloat16 runs is found out by a process that may die of it."""

import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from qkv.decode.cpu import bfloat16 as half
from qkv.decode.cpu.bfloat16 import supports_bfloat16


@pytest.fixture(autouse=True)
def forgotten() -> Iterator[None]:
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
