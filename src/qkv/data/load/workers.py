"""Worker processes that build batches in advance. A failure of a worker is always reported.

Worker k of n builds the results k, k + n, k + 2n, …. The parent takes one result from each worker in turn, so the order
is the same as with a single process. Arrays are passed in shared memory, which has `prefetch` slots for each worker. A
small JSON message gives their offsets. If a worker is killed, fails or hangs, the parent raises an error with its name.
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
from itertools import count
from multiprocessing.connection import Connection, wait
from typing import Any

import numpy as np

from qkv.errors import QkvError

WorkerResult = tuple[dict[str, Any], dict[str, np.ndarray]]  # a JSON header, arrays by name
WorkerTask = Callable[[int, int], Iterator[WorkerResult]]  # (worker, number of workers) → its results, in order

ALIGNMENT_BYTES = 64  # arrays in shared memory begin at multiples of this


class WorkerError(QkvError):
    """A data worker ended unexpectedly, failed or hangs."""


class WorkerPool:
    """Processes that run `task`, each up to `prefetch` results in advance. Iterate over the pool for the results.

    The arrays of a result are valid until the next result is requested. Arrays that do not fit in a slot of
    `slot_bytes` are sent through a pipe, like all arrays on systems without fork.
    """

    def __init__(
        self, task: WorkerTask, num_workers: int, prefetch: int = 4, timeout: float = 120.0, slot_bytes: int = 2**20
    ):
        self.timeout = timeout
        # A forked child shares the data without a copy. Forking is safe, because the child uses torch with one thread
        # only, and no GPU.
        fork = sys.platform == "linux"
        context: Any = multiprocessing.get_context("fork" if fork else "spawn")
        slot_bytes = -(-slot_bytes // mmap.PAGESIZE) * mmap.PAGESIZE
        self.processes: list[Any] = []
        self.pipes: list[Connection] = []
        self.free_slots: list[Any] = []  # one semaphore for each worker
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
                # Python 3.12 warns that other threads may hold locks during a fork. The child uses none of these locks.
                warnings.simplefilter("ignore", DeprecationWarning)
                process.start()
            writer.close()  # only the child has it open now, so reading ends when the child dies
            self.processes.append(process)
            self.pipes.append(reader)
            self.free_slots.append(free)
            self.shared_memories.append(memory)

    def __iter__(self) -> Iterator[WorkerResult]:
        for number in count():
            worker = number % len(self.processes)
            result = self._receive(worker, number)
            if result is None:
                return
            yield result
            self.free_slots[worker].release()

    def _receive(self, worker: int, number: int) -> WorkerResult | None:
        pipe, process, memory = self.pipes[worker], self.processes[worker], self.shared_memories[worker]
        name = f"data worker {worker} (process {process.pid})"
        try:
            if not wait([pipe, process.sentinel], self.timeout):
                raise WorkerError(
                    f"{name} has not responded for {self.timeout:g} s (batch {number} since the start): the worker or "
                    "the disk hangs. Resume from the last checkpoint; num_workers = 0 builds batches without workers"
                )
            header = json.loads(pipe.recv_bytes())
            arrays = {}
            for field, dtype, shape, offset in header.pop("arrays", []):
                size = int(np.prod(shape))
                if offset is None or memory is None:
                    arrays[field] = np.frombuffer(pipe.recv_bytes(), dtype, size).reshape(shape)
                else:
                    arrays[field] = np.frombuffer(memory, dtype, size, offset).reshape(shape)
        except (EOFError, OSError):
            process.join(5)
            ended = describe_exit(process.exitcode)
            raise WorkerError(f"{name} ended {ended}. Resume from the last checkpoint") from None
        if "error" in header:
            error_type = WorkerError if header["expected"] else RuntimeError
            raise error_type(f"data worker {worker}: {header['error']}")
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
    """Describe an exit code in words."""
    if code is None:
        return "its connection but is still running"
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
    """Run a worker process. An error is sent to the parent instead of a result."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # only the parent handles Ctrl-C, and ends this process
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    if "torch" in sys.modules:  # the threads of a parent do not exist in its fork, and torch would wait for them
        sys.modules["torch"].set_num_threads(1)
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
    """Copy arrays into a slot of shared memory and send their offsets. Arrays that do not fit are sent in the pipe."""
    sent, through_pipe = [], []
    offset, end = slot, slot + slot_bytes
    for name, values in arrays.items():
        if memory is not None and offset + values.nbytes <= end:
            np.frombuffer(memory, values.dtype, values.size, offset).reshape(values.shape)[...] = values
            sent.append([name, values.dtype.str, values.shape, offset])
            offset += -(-values.nbytes // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
        else:
            sent.append([name, values.dtype.str, values.shape, None])
            through_pipe.append(np.ascontiguousarray(values).reshape(-1).view(np.uint8))
    pipe.send_bytes(json.dumps({**header, "arrays": sent}).encode())
    for raw in through_pipe:
        pipe.send_bytes(raw.data)


def exit_with_parent() -> None:
    """Wait until the parent process ends for any reason, then end this process."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
