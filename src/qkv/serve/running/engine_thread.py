"""The thread that runs the steps of an engine, and the requests that clients have there.

The event loop only submits, cancels and reads. After a step, the thread notifies the event loop once for all requests
that changed, so a slow client does not delay others. Sending a chunk takes CPU time, which the thread needs for
the next step, so the number of chunks per second is limited: then a chunk has several tokens. The first token and the
end of a text are sent at once.

A forward pass that raises an error fails all requests of its batch, and one of them may be the reason. So each of them
is submitted once more, one after the other. The request that caused the fault fails again, alone, and the others
finish. The second attempt generates the same tokens, because sampling has a seed, and clients receive only what they
have not received yet.
"""

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, suppress
from threading import Lock, Thread
from typing import Any

from qkv.decode import Engine, GenerationOptions, GenerationResult, Request
from qkv.errors import QkvError
from qkv.serve.http.api_error import ApiError
from qkv.serve.running.generation import Generation, notify_all

log = logging.getLogger("qkv.serve")

IDLE_SECONDS = 0.2
"""How often an idle thread checks whether it must end."""


class EngineThread:
    """Runs an engine. If a step raises an error that the engine does not handle, a new engine replaces it."""

    def __init__(
        self,
        name: str,
        make_engine: Callable[[], Engine],
        *,
        max_queue: int,
        max_chunks_per_second: float,
        device_lock: AbstractContextManager[Any],
    ) -> None:
        self.name, self.max_queue, self.max_chunks_per_second = name, max_queue, max_chunks_per_second
        self.engine: Engine = make_engine()
        self.num_faults = 0
        self._make_engine, self._device_lock = make_engine, device_lock
        self._lock = Lock()  # protects `engine`, `_unfinished` and `_retries`
        self._unfinished: set[Generation] = set()
        self._retries: deque[Generation] = deque()
        self._retried: Generation | None = None
        self._changed: list[Generation] = []  # the generations that the last step has changed
        # Generations with new text, each with whether its reader has to be notified at once.
        self._to_notify: dict[Generation, bool] = {}
        self._flushed_at = 0.0
        self._stopped = False
        self._thread = Thread(target=self._work, name=f"engine {name}", daemon=True)
        self._thread.start()

    # ── For the event loop ───────────────────────────────────────────────────────────────────────────────────────

    @property
    def num_unfinished(self) -> int:
        """The number of generations that wait or run."""
        return len(self._unfinished)

    @property
    def has_stopped(self) -> bool:
        """Whether the thread has ended: the model was dropped, or its engine could not be replaced after a fault."""
        return self._stopped

    def check_room(self, count: int = 1) -> None:
        """Raise a 429 if the queue has no room for this number of generations."""
        if self._stopped:
            raise dropped_error(self.name)
        if len(self._unfinished) + count > self.max_queue:
            raise ApiError(
                429,
                f"{len(self._unfinished)} generations of model {self.name!r} are unfinished, and max_queue = "
                f"{self.max_queue}; try again later",
                code="queue_full",
                retry_after=1,
            )

    def submit(
        self,
        prompt: Sequence[int],
        options: GenerationOptions,
        eos_token_ids: tuple[int, ...] | None = None,
        *,
        is_streamed: bool = False,
    ) -> Generation:
        """Queue a generation. Its constraint has been compiled."""
        self.check_room()
        generation = Generation(prompt, options, eos_token_ids, is_streamed=is_streamed, on_cancel=self.cancel)
        with self._lock:
            self._unfinished.add(generation)
        try:
            self._submit(generation)
        except BaseException:
            self.cancel(generation)
            raise
        return generation

    def cancel(self, generation: Generation) -> None:
        """Stop a generation and free its slot."""
        generation.is_cancelled = True
        with self._lock:
            self._unfinished.discard(generation)
            if generation.engine is not None and generation.request is not None:
                generation.engine.cancel(generation.request)

    def stop(self) -> None:
        """End the thread. Unfinished generations fail."""
        self._stopped = True
        self._thread.join()

    # ── In the thread ────────────────────────────────────────────────────────────────────────────────────────────

    def _submit(self, generation: Generation) -> None:
        """Submit a generation to the engine. If the engine is replaced at this moment, the new one gets it."""

        def on_change(request: Request) -> None:
            generation.request = request
            self._changed.append(generation)

        engine, generation.num_attempts = self.engine, generation.num_attempts + 1
        request = engine.submit(
            generation.prompt, generation.options, on_change, eos_token_ids=generation.eos_token_ids
        )
        with self._lock:
            generation.engine, generation.request = engine, request
            if generation.is_cancelled:
                engine.cancel(request)
            elif engine is not self.engine:
                self._retries.append(generation)

    def _work(self) -> None:
        while not self._stopped:
            if not self.engine.wait(IDLE_SECONDS) and not self._retries:
                continue
            has_work = True
            try:
                with self._device_lock:
                    has_work = self.engine.step()
            except Exception as error:
                self._replace_engine(error)
            self._handle_changes()
            self._retry_next()
            is_due = time.monotonic() - self._flushed_at >= len(self._to_notify) / self.max_chunks_per_second
            self._flush(only_urgent=has_work and not is_due)
        with self._lock:
            unfinished = list(self._unfinished)
        for generation in unfinished:
            self._finish(generation, dropped_error(self.name))
        self._flush()

    def _handle_changes(self) -> None:
        """Note which of the changed generations have ended, and queue generations that failed because of a fault for a
        retry.
        """
        changed, self._changed = self._changed, []
        for generation in changed:
            request = generation.request
            assert request is not None
            is_first = bool(request.ids) and not generation.first_token_at
            if is_first:
                generation.first_token_at = time.monotonic()
            if generation.is_streamed:
                self._to_notify[generation] = is_first or self._to_notify.get(generation, False)
            if request.state == "done":
                self._finish(generation, request.result)
            elif request.state == "failed":
                self._handle_failure(generation, request.error or RuntimeError("the engine failed"))

    def _handle_failure(self, generation: Generation, error: Exception) -> None:
        is_fault = not isinstance(error, QkvError)
        if is_fault:
            self.num_faults += 1
            log.error("model %s: a forward pass failed: %r", self.name, error, exc_info=error)
        if is_fault and generation.num_attempts == 1 and not generation.is_cancelled:
            with self._lock:
                self._retries.append(generation)
        else:
            self._finish(generation, error)

    def _retry_next(self) -> None:
        """Retry the next generation that failed because of a fault, after the previous retry has ended."""
        while self._retries and (self._retried is None or self._retried not in self._unfinished):
            with self._lock:
                generation = self._retried = self._retries.popleft()
            if not generation.is_cancelled:
                try:
                    self._submit(generation)
                except Exception as error:
                    self._finish(generation, error)

    def _replace_engine(self, error: Exception) -> None:
        """After a fault that the engine did not handle, its state is unknown: fail all its requests, and replace it."""
        log.error("model %s: a step failed, and the engine is replaced: %r", self.name, error, exc_info=error)
        with self._lock:
            self._changed.clear()
            unfinished = [g for g in self._unfinished if g not in self._retries and g.request is not None]
            try:
                self.engine = self._make_engine()
            except Exception as second:
                log.critical("model %s: no new engine can be made: %r", self.name, second)
                self._stopped = True
        for generation in unfinished:
            self._handle_failure(generation, error)

    def _finish(self, generation: Generation, outcome: GenerationResult | Exception | None) -> None:
        generation.outcome = outcome
        with self._lock:
            self._unfinished.discard(generation)
        self._to_notify[generation] = True

    def _flush(self, *, only_urgent: bool = False) -> None:
        """Notify the event loop of generations that changed since the last time."""
        chosen = [generation for generation, is_urgent in self._to_notify.items() if is_urgent or not only_urgent]
        by_loop: dict[asyncio.AbstractEventLoop, list[Generation]] = {}
        for generation in chosen:
            del self._to_notify[generation]
            by_loop.setdefault(generation.loop, []).append(generation)
        if not only_urgent:
            self._flushed_at = time.monotonic()
        for loop, generations in by_loop.items():
            with suppress(RuntimeError):  # the loop is closed: the server has stopped
                loop.call_soon_threadsafe(notify_all, generations)


def dropped_error(name: str) -> ApiError:
    """The error for requests of a model that was dropped, or whose engine has failed for good."""
    message = f"model {name!r} has stopped; drop it and load it again: POST /models/{name}/drop, then /load"
    return ApiError(503, message, code="model_dropped", retry_after=1)
