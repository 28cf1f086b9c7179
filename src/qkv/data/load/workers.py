"""Worker processes that build batches ahead of time, and die loudly.

Worker k of n makes every n-th result; the parent takes them in turn, so their order is that of a single process. What
is built lies in memory that both share, in one of `prefetch` slots for each worker; a small JSON message says where.
A worker that is killed, fails or hangs is an error that names it.
"""

import json
import mmap
import multiprocessing
import os
import signal
import sys
import threading
import traceback
import warnings
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection, wait
from typing import Any

import numpy as np

from qkv.errors import QkvError

WorkerResult = tuple[dict[str, Any], dict[str, np.ndarray]]  # a JSON header, arrays by name
WorkerTask = Callable[[int, int], Iterator[WorkerResult]]  # (worker, workers) → that worker's results, in order

ALIGNMENT_BYTES = 64  # arrays begin at multiples of so many bytes


class WorkerError(QkvError):
    """A data worker ended or hung."""


class WorkerPool:
    """`count` processes that run `task`, each up to `prefetch` results ahead; iterate to get the results in order.

    Arrays are valid until the next result is asked for. Those beyond `slot_bytes` go through a pipe, as all do where
    processes cannot be forked.
    """

    def __init__(
        self, task: WorkerTask, num_workers: int, prefetch: int = 4, timeout: float = 120.0, slot_bytes: int = 2**20
    ):
        self.timeout = timeout
        # Forking shares the data without copying it, and the child touches neither torch nor a device.
        fork = sys.platform == "linux"
        context: Any = multiprocessing.get_context("fork" if fork else "spawn")
        slot_bytes = -(-slot_bytes // mmap.PAGESIZE) * mmap.PAGESIZE
        self.processes: list[Any] = []
        self.pipes: list[Connection] = []
        self.free_slots: list[Any] = []  # how many slots of each worker may be written to
        self.shared_memories: list[mmap.mmap | None] = []
        for worker in range(num_workers):
            reader, writer = context.Pipe(duplex=False)
            free = context.Semaphore(prefetch)
            memory = mmap.mmap(-1, prefetch * slot_bytes) if fork and slot_bytes else None
            process = context.Process(
                target=worker_main,
                args=(task, worker, num_workers, writer, free, memory, slot_bytes),
                name=f"data worker {worker}",
                daemon=True,
            )
            with warnings.catch_warnings():
                # Python 3.12 warns of forking beside threads, which may hold locks: the child needs none of theirs.
                warnings.simplefilter("ignore", DeprecationWarning)
                process.start()
            writer.close()  # the child's copy is the only one left: when it dies, reading ends
            self.processes.append(process)
            self.pipes.append(reader)
            self.free_slots.append(free)
            self.shared_memories.append(memory)

    def __iter__(self) -> Iterator[WorkerResult]:
        taken = 0
        while True:
            worker = taken % len(self.processes)
            result = self._receive(worker, taken)
            if result is None:
                return
            yield result
            self.free_slots[worker].release()
            taken += 1

    def _receive(self, worker: int, number: int) -> WorkerResult | None:
        pipe, process, memory = self.pipes[worker], self.processes[worker], self.shared_memories[worker]
        told = f"data worker {worker} (process {process.pid})"
        try:
            if not wait([pipe, process.sentinel], self.timeout):
                raise WorkerError(
                    f"{told} has not answered for {self.timeout:g} s, at batch {number} after the start: it hangs, or "
                    "the disk does. Start again from the last checkpoint, with workers = 0 to do without workers"
                )
            header = json.loads(pipe.recv_bytes())
            arrays = {}
            for name, kind, shape, place in header.pop("arrays", []):
                size = int(np.prod(shape))
                if place is None or memory is None:
                    arrays[name] = np.frombuffer(pipe.recv_bytes(), kind, size).reshape(shape)
                else:
                    arrays[name] = np.frombuffer(memory, kind, size, place).reshape(shape)
        except (EOFError, OSError):
            process.join(5)
            raise WorkerError(
                f"{told} ended {describe_exit(process.exitcode)}. Start again from the last checkpoint"
            ) from None
        if "error" in header:
            kind = WorkerError if header["expected"] else RuntimeError
            raise kind(f"data worker {worker}: {header['error']}")
        return None if header.get("end") else (header, arrays)

    def close(self) -> None:
        """End all workers."""
        for process in self.processes:
            process.kill()
        for process, pipe in zip(self.processes, self.pipes, strict=True):
            process.join()
            pipe.close()
        self.processes, self.pipes, self.free_slots, self.shared_memories = [], [], [], []


def describe_exit(code: int | None) -> str:
    """An exit code in words."""
    if code is None:
        return "its pipe but not itself"
    if code < 0:
        name = signal.Signals(-code).name
        return f"by signal {name}" + (" (out of memory?)" if name == "SIGKILL" else "")
    return f"with exit code {code}"


def worker_main(
    task: WorkerTask,
    worker: int,
    num_workers: int,
    pipe: Connection,
    free_slots: Any,
    memory: mmap.mmap | None,
    slot_bytes: int,
) -> None:
    """What a worker process does. Whatever goes wrong is sent to the parent in a result's place."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent, which ends us
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    threading.Thread(target=exit_with_parent, daemon=True).start()
    slots = len(memory) // slot_bytes if memory else 1
    try:
        for number, (header, arrays) in enumerate(task(worker, num_workers)):
            free_slots.acquire()
            send_arrays(pipe, header, arrays, memory, number % slots * slot_bytes, slot_bytes)
        last: dict[str, Any] = {"end": True}
    except QkvError as error:
        last = {"error": str(error), "expected": True}
    except BaseException:
        last = {"error": traceback.format_exc(), "expected": False}
    pipe.send_bytes(json.dumps(last).encode())


def send_arrays(
    pipe: Connection,
    header: dict[str, Any],
    arrays: dict[str, np.ndarray],
    memory: mmap.mmap | None,
    slot: int,
    slot_bytes: int,
) -> None:
    """Lay arrays into a slot of shared memory and say where they are; those that do not fit follow through the pipe."""
    described, beside = [], []
    place, end = slot, slot + slot_bytes
    for name, values in arrays.items():
        if memory is not None and place + values.nbytes <= end:
            np.frombuffer(memory, values.dtype, values.size, place).reshape(values.shape)[...] = values
            described.append([name, values.dtype.str, values.shape, place])
            place += -(-values.nbytes // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
        else:
            described.append([name, values.dtype.str, values.shape, None])
            beside.append(np.ascontiguousarray(values).reshape(-1).view(np.uint8))
    pipe.send_bytes(json.dumps({**header, "arrays": described}).encode())
    for raw in beside:
        pipe.send_bytes(raw.data)


def exit_with_parent() -> None:
    """End this process when its parent is gone, however it went."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
