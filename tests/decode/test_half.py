"""Whether bfloat16 runs is found out by a process that may die of it."""

import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from qkv.decode import half
from qkv.decode.half import bfloat16_runs


@pytest.fixture(autouse=True)
def forgotten() -> Iterator[None]:
    bfloat16_runs.cache_clear()
    yield
    bfloat16_runs.cache_clear()


@pytest.mark.parametrize(
    ("tried", "runs"),
    [
        ("pass", True),
        ("import os, signal; os.kill(os.getpid(), signal.SIGILL)", False),
        ("assert 1 == 2", False),
    ],
)
def test_what_the_process_says_counts(tried: str, runs: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(half, "_TRY", tried)
    assert bfloat16_runs() is runs


@pytest.mark.parametrize("error", [OSError("no memory"), subprocess.TimeoutExpired("python", 1)])
def test_a_process_that_cannot_be_had_is_a_no(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*args: Any, **kwargs: Any) -> None:
        raise error

    monkeypatch.setattr(subprocess, "run", fails)
    assert bfloat16_runs() is False


def test_it_is_asked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[list[str]] = []
    real = subprocess.run

    def counting(command: list[str], **kwargs: Any) -> Any:
        asked.append(command)
        return real([sys.executable, "-c", "pass"], **kwargs)

    monkeypatch.setattr(subprocess, "run", counting)
    assert bfloat16_runs() is bfloat16_runs() is True
    assert len(asked) == 1
    assert "bfloat16" in asked[0][-1]
