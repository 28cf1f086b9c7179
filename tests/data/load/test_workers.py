"""Worker processes on their own: order, arrays unharmed, and nothing left behind when the parent is gone."""

import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

from qkv.data.load.workers import WorkerError, WorkerPool


def numbered(worker, workers):
    for number in range(worker, 10, workers):
        arrays = {"n": np.full((number, 2), number, np.int32), "f": np.array([number / 4], np.float32)}
        yield {"number": number}, arrays


@pytest.mark.parametrize("slot_bytes", [0, 2**16])  # 0: no memory is shared, all goes through the pipe
@pytest.mark.parametrize("count", [1, 2, 3])
def test_results_come_in_order_and_whole(count, slot_bytes):
    workers = WorkerPool(numbered, count, prefetch=2, slot_bytes=slot_bytes)
    for number, (header, arrays) in enumerate(workers):
        assert header == {"number": number}
        assert arrays["n"].tolist() == [[number, number]] * number
        assert arrays["f"].dtype == np.float32
        assert arrays["f"].tolist() == [number / 4]
    assert number == 9
    workers.close()


def test_a_worker_that_leaves_is_named_with_its_exit_code():
    def leaving(worker, workers):
        yield {}, {}
        os._exit(3)

    workers = WorkerPool(leaving, 1)
    with pytest.raises(WorkerError, match=r"data worker 0 \(process \d+\) ended with exit code 3"):
        list(workers)
    workers.close()


ORPHANS = """
import itertools, time
import numpy as np
from qkv.data.load.workers import WorkerPool
workers = WorkerPool(lambda worker, count: (({}, {"x": np.zeros(100000)}) for _ in itertools.count()), 2)
next(iter(workers))
print(*(process.pid for process in workers.processes), flush=True)
time.sleep(60)
"""


def alive(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as stat:
            return stat.read().rsplit(")", 1)[1].split()[0] != "Z"  # a zombie waits for init, but is dead
    except OSError:
        return False


@pytest.mark.skipif(not os.path.exists("/proc/self/stat"), reason="needs /proc")
def test_workers_of_a_killed_process_do_not_stay():
    parent = subprocess.Popen([sys.executable, "-c", ORPHANS], stdout=subprocess.PIPE, text=True)
    pids = [int(pid) for pid in parent.stdout.readline().split()]
    assert len(pids) == 2
    assert all(alive(pid) for pid in pids)  # the control
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    parent.stdout.close()
    deadline = time.monotonic() + 10
    while any(alive(pid) for pid in pids) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not any(alive(pid) for pid in pids)


def test_where_processes_cannot_be_forked_they_are_spawned(monkeypatch):
    monkeypatch.setattr("qkv.data.load.workers.sys.platform", "darwin")
    workers = WorkerPool(numbered, 1)
    assert workers.shared_memories == [None]
    assert [header["number"] for header, _ in workers] == list(range(10))
    workers.close()
