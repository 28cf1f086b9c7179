"""Stop signals: SIGINT (Ctrl-C) and SIGTERM. Within two seconds, a run ends or announces that it saves a checkpoint.

Python runs signal handlers only between two Python instructions, so they never run while the main thread is stuck in a
collective or another long call. Therefore the low-level handler also writes the signal's number to a socket
(`signal.set_wakeup_fd`). A thread reads it, announces the stop, and exits the process after a second signal or when a
deadline has passed.
"""

import logging
import os
import signal
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType, TracebackType
from typing import Literal

log = logging.getLogger("qkv")

SIGNALS = (signal.SIGINT, signal.SIGTERM)
SAME_REQUEST_SECONDS = 1.0
"""Signals within this time count as one request. Ctrl-C reaches every process, and then torchrun sends it again."""
DEADLINE_SECONDS = 8.0
"""The shortest deadline: a loop that does not react to a stop signal for this long may count as stuck."""
MAX_DEADLINE_SECONDS = 25.0
"""The longest deadline. It is below the 30 s that torchrun waits between SIGTERM and SIGKILL."""

ABORT_SECONDS = 1.5
"""Seconds between a request and the exit of the process, if there is nothing to save and the main thread is stuck."""

POLL_SECONDS = 0.2

SignalMode = Literal["finish", "raise", "abort"]
ANNOUNCEMENTS: dict[SignalMode, str] = {
    "finish": "saving a checkpoint after this step, then stopping",
    "raise": "ending the evaluation, then saving a checkpoint and stopping",
    "abort": "stopping; there is nothing new to save",
}

_active: "StopSignals | None" = None


class StopRequested(BaseException):
    """A stop signal arrived. Like `KeyboardInterrupt`, it is no `Exception`, so that no other code catches it."""

    def __init__(self, number: int) -> None:
        super().__init__(f"stopped by {signal.Signals(number).name}")
        self.number = number


class StopSignals:
    """Catches stop signals inside a `with` block. `requested` is the first signal that arrived.

    The effect of the first signal depends on the mode, which `use_mode` sets for a block:

        "finish"   none: the loop reads `requested` in each step, and stops
        "raise"    `StopRequested` is raised in the main thread, for work that can be abandoned, such as an evaluation
        "abort"    as "raise", and the process exits if this takes too long, because nothing would be lost

    A second request exits the process immediately, with code 128 + the signal's number.

    With `multi_process` there is also a deadline: if the loop does not read `requested` for too long after a request,
    the process exits, because the loop must be waiting for a rank that is gone. The limit is twice the longest time
    between two reads so far, but at least `DEADLINE_SECONDS` and at most `MAX_DEADLINE_SECONDS`. `no_deadline()`
    suspends the deadline during long work, and `acknowledge()` ends it.

    >>> with StopSignals(multi_process=world.size > 1) as signals:
    ...     while not signals.requested:
    ...         step()
    ...     signals.acknowledge()
    ...     save()
    """

    def __init__(self, multi_process: bool = False, mode: SignalMode = "finish", announce: bool = True) -> None:
        self.multi_process, self.mode, self.announce = multi_process, mode, announce
        self._requested: int | None = None
        self._last_check, self._longest_gap = time.monotonic(), 0.0
        self._acknowledged = self._has_no_deadline = self._raised = False
        self._old_handlers: dict[int, object] = {}
        self._outer: StopSignals | None = None  # the block around this one

    @property
    def requested(self) -> int | None:
        """The first signal that arrived, or None."""
        self._check_in()
        return self._requested

    def _check_in(self) -> None:
        now = time.monotonic()
        if self._requested is None:
            self._longest_gap = max(self._longest_gap, now - self._last_check)
        self._last_check = now

    def acknowledge(self) -> None:
        """End the deadline. The loop calls this when it stops."""
        self._acknowledged = True

    @contextmanager
    def no_deadline(self) -> Iterator[None]:
        """Suspend the deadline for work that takes longer than a step, such as an evaluation.

        During this time, only the heartbeat detects a lost process.
        """
        self._check_in()
        self._has_no_deadline = True
        try:
            yield
        finally:
            self._last_check = time.monotonic()  # the time spent here does not count as a step
            self._has_no_deadline = False

    @contextmanager
    def use_mode(self, mode: SignalMode) -> Iterator[None]:
        """Set the mode inside a block. If a signal arrived before and the mode raises, raise now."""
        before, self.mode = self.mode, mode
        try:
            if mode != "finish" and self._requested is not None:
                raise StopRequested(self._requested)
            yield
        finally:
            self.mode = before

    def __enter__(self) -> "StopSignals":
        global _active
        if threading.current_thread() is not threading.main_thread():
            return self  # only the main thread can handle signals
        self._receiver, self._sender = socket.socketpair()
        self._sender.setblocking(False)
        self._old_wakeup_fd = signal.set_wakeup_fd(self._sender.fileno(), warn_on_full_buffer=False)
        for number in SIGNALS:
            if signal.getsignal(number) is not signal.SIG_IGN:  # shells ignore SIGINT for background jobs
                self._old_handlers[number] = signal.signal(number, self._handle)
        self._outer, _active = _active, self
        self._thread = threading.Thread(target=self._listen, name="stop signals", daemon=True)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        global _active
        if _active is not self:  # never entered, or this is a forked process
            return
        _active = self._outer
        for number, handler in self._old_handlers.items():
            signal.signal(number, handler)  # type: ignore[arg-type]
        signal.set_wakeup_fd(self._old_wakeup_fd)
        self._sender.close()  # this ends the thread
        self._thread.join()
        self._receiver.close()

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if not self._raised and self.mode != "finish":
            self._raised = True
            self._requested = self._requested or number
            raise StopRequested(number)
        self._requested = self._requested or number

    def _listen(self) -> None:
        first = 0.0  # the time of the first request
        while True:
            deadline = self._deadline(first) if first else None
            # After a request the mode may still change, so check again soon.
            wait = POLL_SECONDS if deadline is None else max(0.01, deadline - time.monotonic())
            self._receiver.settimeout(wait if first else None)
            try:
                data = self._receiver.recv(64)
            except TimeoutError:
                deadline = self._deadline(first)
                if deadline is not None and time.monotonic() >= deadline:
                    os._exit(128 + (self._requested or signal.SIGTERM))
                continue
            if not data:  # the other end is closed
                return
            for number in data:
                if number not in self._old_handlers:
                    continue  # another handler is responsible for this signal
                now = time.monotonic()
                if first and now - first > SAME_REQUEST_SECONDS:
                    os._exit(128 + number)
                if not first and self.announce:
                    log.warning("%s: %s", signal.Signals(number).name, ANNOUNCEMENTS[self.mode])
                first = first or now
                self._requested = self._requested or number

    def _deadline(self, first: float) -> float | None:
        """Return the time at which the process exits: a loop that does not read `requested` before counts as stuck."""
        if self.mode == "abort":
            return first + ABORT_SECONDS
        if not self.multi_process or self._acknowledged:
            return None
        checked = time.monotonic() if self._has_no_deadline else self._last_check
        return max(first, checked) + min(max(DEADLINE_SECONDS, 2 * self._longest_gap), MAX_DEADLINE_SECONDS)


# A forked process inherits the socket and the handlers of its parent, so a signal to the child would look like a
# request to the parent. Therefore signals are blocked during a fork, until the child has dropped both.


def _before_fork() -> None:
    if _active is not None:
        signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)


def _after_fork() -> None:
    if _active is not None:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)


def _after_fork_in_child() -> None:
    global _active
    if _active is not None:
        signal.set_wakeup_fd(-1)
        while _active is not None:
            for number, handler in _active._old_handlers.items():
                signal.signal(number, handler)  # type: ignore[arg-type]
            _active = _active._outer
        signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before_fork, after_in_parent=_after_fork, after_in_child=_after_fork_in_child)
