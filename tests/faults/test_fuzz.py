"""The first cases of the fuzzer, `fuzz.py`: damaged files work or are refused, in bounded time and memory."""

import os
import random
import signal
from pathlib import Path

import fuzz
import pytest
from fuzz_samples import AREAS, Area

CASES = 80

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="the fuzzer forks its processes")


@pytest.fixture(scope="module")
def samples(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("fuzz") / "samples"
    fuzz.make_samples(folder, list(AREAS.values()))
    return folder


@pytest.mark.parametrize("name", AREAS)
def test_damaged_files_work_or_are_refused(name: str, samples: Path) -> None:
    outcomes = list(fuzz.fuzz(AREAS[name], samples, CASES))
    assert [outcome.case for outcome in outcomes] == list(range(CASES))
    assert [outcome for outcome in outcomes if outcome.result not in ("works", "refused")] == []
    assert {outcome.result for outcome in outcomes} == {"works", "refused"}


def fail(folder: Path) -> None:
    """Fail in a different way for each of a few cases."""
    match random.Random(str(sorted(one.read_bytes() for one in folder.iterdir() if one.is_file()))).randrange(5):
        case 0:
            raise ValueError("a bug")
        case 1:
            os.kill(os.getpid(), signal.SIGKILL)
        case 2:
            bytearray(2**33)
        case 3:
            while True:
                pass


def test_the_fuzzer_notices_failures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A negative control: exceptions, crashes, memory and time are found, and the cases after them still run."""
    monkeypatch.setattr(fuzz, "MAX_CPU_SECONDS", 0.2)
    (tmp_path / "samples" / "bad" / "one").mkdir(parents=True)
    (tmp_path / "samples" / "bad" / "one" / "a.txt").write_text("text " * 100)
    outcomes = list(fuzz.fuzz(Area("bad", lambda folder: None, fail), tmp_path / "samples", 30))
    assert [outcome.case for outcome in outcomes] == list(range(30))
    results = {outcome.result for outcome in outcomes}
    assert results == {
        "works",
        "ValueError",
        "MemoryError",
        "the process ended with -9",
        "longer than 0 s on the CPU",
    }
