"""If a process dies, freezes or fails, the others soon exit and report which process it was."""

import os
import signal
import subprocess
import sys
import threading
import time
from datetime import timedelta
from pathlib import Path

import parallel_freezer
import pytest
import torch.distributed as dist

from qkv.errors import UsageError
from qkv.train.parallel import launch as launching
from qkv.train.parallel.heartbeat import Heartbeat
from qkv.train.parallel.launch import launch

pytestmark = pytest.mark.skipif(not dist.is_available(), reason="this torch cannot talk to others")


# ---------------------------------------------------------------------------------------------------- heartbeat


class Noted(Heartbeat):
    """Notes why it would end its process."""

    ended = ""

    def _exit(self, why: str) -> None:
        if not self._stopped.is_set():
            self.ended = why
            self._stopped.set()


def some(size: int, limit: float = 0.8) -> list[Noted]:
    store = dist.HashStore()
    made = [Noted(store, rank, size, every=0.02, limit=limit, grace=0.02) for rank in range(size)]
    for one in made:
        one.start()
    return made


def wait_for(true: object, seconds: float = 10.0) -> bool:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if true():  # type: ignore[operator]
            return True
        time.sleep(0.01)
    return False


def test_silence_is_noticed_and_everybody_hears_who_it_was() -> None:
    first, second, third, fourth = some(4)
    third._stopped.set()  # stops without a word
    assert wait_for(lambda: first.ended and second.ended and fourth.ended)
    assert {first.ended, second.ended, fourth.ended} == {"rank 2 has sent no heartbeat for 0.8 s"}


def test_a_failure_is_told_to_everybody() -> None:
    first, second, third = some(3)
    second.stop(failed=True)
    assert wait_for(lambda: first.ended and third.ended)
    assert first.ended == third.ended == "rank 1 failed"


def test_those_who_leave_in_good_order_are_not_missed() -> None:
    first, second, third = some(3)
    second.stop()
    time.sleep(1.5)
    assert not first.ended
    assert not third.ended
    third._stopped.set()  # the first listens to the third now
    assert wait_for(lambda: first.ended)
    assert "rank 2 has sent no heartbeat" in first.ended


def test_a_process_whose_starter_is_gone_ends() -> None:
    first, second = some(2)
    second.parent = -1
    assert wait_for(lambda: second.ended)
    assert "its parent process is gone" in second.ended
    first._stopped.set()


def test_a_store_that_is_gone_ends_everybody() -> None:
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    limit = timedelta(seconds=1)
    client = dist.TCPStore("127.0.0.1", store.port, is_master=False, timeout=limit, wait_for_workers=False)
    one = Noted(client, 0, 1, every=0.05, limit=0.5)
    one.start()
    time.sleep(0.3)
    assert not one.ended
    del store
    assert wait_for(lambda: one.ended)
    assert "does not answer" in one.ended


def test_a_frozen_process_ends_the_other_one_which_hangs_in_a_collective(tmp_path: Path) -> None:
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    common = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(store.port)}
    common |= {"TORCHELASTIC_USE_AGENT_STORE": "True", "OMP_NUM_THREADS": "1"}
    line = [sys.executable, parallel_freezer.__file__]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    first, second = (subprocess.Popen(line, env={**os.environ, **common, "RANK": str(r)}, **pipes) for r in range(2))
    try:
        assert first.stdout.readline() == "going\n"
        second.send_signal(signal.SIGSTOP)
        _, said = first.communicate(timeout=30)
        assert first.returncode == 1
        assert "rank 0 of 2 exits: rank 1 has sent no heartbeat for 3 s" in said
    finally:
        for process in (first, second):
            process.kill()
            process.communicate()


# ------------------------------------------------------------------------------------------------------- launch

PYTHON = [sys.executable, "-c"]
HEAD = "import os, sys, time, signal; rank = int(os.environ['RANK']); "


def test_every_process_is_told_who_it_is_and_the_first_alone_writes_plainly(capfd: pytest.CaptureFixture[str]) -> None:
    code = HEAD + "print(rank, os.environ['LOCAL_RANK'], os.environ['WORLD_SIZE'], sys.argv[1])"
    assert launch(2, [code, "word"], command=PYTHON) == 0
    out, err = capfd.readouterr()
    assert out == "0 0 2 word\n"
    assert err == "[1] 1 1 2 word\n"


def test_the_first_failure_is_the_exit_code_and_ends_the_others() -> None:
    code = HEAD + "sys.exit(7) if rank == 1 else time.sleep(100)"
    began = time.monotonic()
    assert launch(3, [code], command=PYTHON) == 7
    assert time.monotonic() - began < 10  # the limit that a killed process has to be noticed in


def test_a_killed_process_counts_as_shells_count_it_and_deaf_ones_are_killed(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(launching, "FAILURE_GRACE_SECONDS", 0.5)
    deaf = "signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(100)"
    code = HEAD + f"time.sleep(0.5) or os.kill(os.getpid(), 9) if rank == 0 else exec({deaf!r})"
    assert launch(2, [code], command=PYTHON) == 137
    assert "rank 0 of 2 was killed by SIGKILL" in caplog.text


@pytest.mark.skipif(threading.current_thread() is not threading.main_thread(), reason="signals reach the main thread")
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_signals_are_passed_on_and_waited_for(tmp_path: Path, number: int, code: int) -> None:
    body = (
        "import os, sys, time, signal, pathlib\n"
        "def end(number, frame):\n"
        "    time.sleep(0.3)  # a checkpoint\n"
        "    (here / f'saved{os.environ[\"RANK\"]}').touch()\n"
        "    os._exit(128 + number)\n"
        "here = pathlib.Path(sys.argv[1])\n"
        "signal.signal(signal.SIGINT, end); signal.signal(signal.SIGTERM, end)\n"
        "(here / f'ready{os.environ[\"RANK\"]}').touch()\n"
        "time.sleep(100)\n"
    )

    def send() -> None:
        if wait_for(lambda: len(list(tmp_path.glob("ready*"))) == 2):
            os.kill(os.getpid(), number)

    threading.Thread(target=send).start()
    assert launch(2, [body, str(tmp_path)], command=PYTHON) == code
    assert len(list(tmp_path.glob("saved*"))) == 2


def test_no_processes_are_refused() -> None:
    with pytest.raises(UsageError, match="--processes 0"):
        launch(0, [])
