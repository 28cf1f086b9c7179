"""Dynamic batching: calls that arrive within a few milliseconds run as one batch, in a thread of their own."""

import asyncio
import time
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from threading import Condition, Thread
from typing import Any

from qkv.serve.http.api_error import ApiError

OnProgress = Callable[[int, int], None]
Run = Callable[[list[Any], OnProgress], Sequence[Any]]
"""A function of several inputs that returns a result for each. It calls its second argument between parts of its work,
which raises `Abandoned` if nobody waits for the results any more."""


class Abandoned(Exception):
    """All clients of a batch have disconnected."""


@dataclass(eq=False)
class BatchedCall:
    """The inputs of one client. Calls with equal keys can run in one batch; a call without a key runs alone."""

    key: Hashable | None
    run: Run
    inputs: list[Any]
    future: "asyncio.Future[list[Any]]"
    loop: asyncio.AbstractEventLoop

    def finish(self, results: list[Any] | None, error: Exception | None = None) -> None:
        """Set the result in the event loop of the client. A client that has disconnected is ignored."""

        def set_result() -> None:
            if not self.future.done():
                if error is not None:
                    self.future.set_exception(error)
                else:
                    self.future.set_result(results or [])

        with suppress(RuntimeError):  # the loop is closed: the server has stopped
            self.loop.call_soon_threadsafe(set_result)


class DynamicBatcher:
    """The queue and the thread. The first call waits `gather_seconds` for others to join its batch."""

    def __init__(
        self,
        name: str,
        *,
        gather_seconds: float,
        max_queue: int,
        max_batch: int,
        device_lock: AbstractContextManager[Any],
    ) -> None:
        self.name, self.gather_seconds, self.max_queue, self.max_batch = name, gather_seconds, max_queue, max_batch
        self.num_batches = 0
        self._device_lock = device_lock
        self._queue: deque[BatchedCall] = deque()
        self._running: list[BatchedCall] = []
        self._changed = Condition()
        self._stopped = False
        self._thread = Thread(target=self._work, name=f"gather {name}", daemon=True)
        self._thread.start()

    @property
    def num_unfinished(self) -> int:
        """The number of calls that wait or run."""
        return len(self._queue) + len(self._running)

    async def map(self, run: Run, inputs: list[Any], key: Hashable | None = None) -> list[Any]:
        """Run a function on inputs, together with the inputs of other calls that have the same key.

        If the caller is cancelled, a call that still waits is removed from the queue.
        """
        loop = asyncio.get_running_loop()
        call = BatchedCall(key, run, inputs, loop.create_future(), loop)
        with self._changed:
            if self._stopped:
                raise ApiError(503, f"model {self.name!r} was dropped", code="model_dropped", retry_after=1)
            if len(self._queue) >= self.max_queue:
                message = f"max_queue = {self.max_queue} calls of model {self.name!r} are waiting; try again later"
                raise ApiError(429, message, retry_after=1)
            self._queue.append(call)
            self._changed.notify()
        try:
            return await call.future
        finally:
            if call.future.cancelled():
                with self._changed:
                    if call in self._queue:
                        self._queue.remove(call)

    async def call(self, function: Callable[[], Any]) -> Any:
        """Run one function in the thread, alone."""
        return (await self.map(lambda _, __: [function()], [None]))[0]

    def stop(self) -> None:
        """End the thread. Calls that wait fail."""
        with self._changed:
            self._stopped = True
            self._changed.notify()
        self._thread.join()

    def _work(self) -> None:
        while batch := self._take_batch():
            self._run(batch)
            with self._changed:
                self._running = []

    def _take_batch(self) -> list[BatchedCall]:
        """Wait for a call, and for others that can run with it. The result is empty when the thread must end."""
        with self._changed:
            self._changed.wait_for(lambda: self._queue or self._stopped)
            deadline = time.monotonic() + self.gather_seconds
            while self._queue and self._queue[0].key is not None and not self._stopped:
                left = deadline - time.monotonic()
                if left <= 0 or sum(len(call.inputs) for call in self._queue) >= self.max_batch:
                    break
                self._changed.wait(left)
                self._changed.wait_for(lambda: self._queue or self._stopped)
            if self._stopped:
                for call in self._queue:
                    call.finish(None, ApiError(503, f"model {self.name!r} was dropped", retry_after=1))
                self._queue.clear()
                return []
            first = self._queue.popleft()
            self._running = [first]
            room = self.max_batch - len(first.inputs)
            for call in list(self._queue) if first.key is not None else ():
                if call.key == first.key and len(call.inputs) <= room:
                    self._queue.remove(call)
                    self._running.append(call)
                    room -= len(call.inputs)
            return self._running

    def _run(self, batch: list[BatchedCall]) -> None:
        """Run a batch. If it fails, each call runs alone, so that one bad input does not fail the others."""
        self.num_batches += 1

        def check(*_: int) -> None:
            if all(call.future.cancelled() for call in batch):
                raise Abandoned

        inputs = [text for call in batch for text in call.inputs]
        try:
            with self._device_lock:
                check()
                results = list(batch[0].run(inputs, check))
        except Exception as error:
            if len(batch) == 1:
                batch[0].finish(None, error)
            else:
                for call in batch:
                    self._run([call])
            return
        start = 0
        for call in batch:
            call.finish(results[start : start + len(call.inputs)])
            start += len(call.inputs)
