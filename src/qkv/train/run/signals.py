"""Stop signals: SIGINT (Ctrl-C) and SIGTERM stop a run after the current step, and it saves a last checkpoint.

Python runs signal handlers only between two Python instructions, so they never run while the main thread is stuck in a
collective. Therefore the low-level handler also writes the signal's number to a socket (`signal.set_wakeup_fd`). A
thread reads it, and exits the process after a second signal or when the deadline has passed.
"""

import os
import signal
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType, TracebackType

SIGNALS = (signal.SIGINT, signal.SIGTERM)
SAME_REQUEST_SECONDS = 1.0
"""Signals within this time count as one request. Ctrl-C reaches every process, and then torchrun sends it again."""
DEADLINE_SECONDS = 8.0
"""The shortest deadline: a loop that does not react to a stop signal for this long may count as stuck."""
MAX_DEADLINE_SECONDS = 25.0
"""The longest deadline. It is below the 30 s that torchrun waits between SIGTERM and SIGKILL."""

_active: "StopSignals | None" = None


class StopSignals:
    """Catches stop signals inside a `with` block. `requested` is the first signal that arrived.

    The loop reads `requested` in each step, and stops. A second request exits the process immediately, with code 128 +
    the signal's number.

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

    def __init__(self, multi_process: bool = False) -> None:
        self.multi_process = multi_process
        self._requested: int | None = None
        self._last_check, self._longest_gap = time.monotonic(), 0.0
        self._acknowledged = self._has_no_deadline = False
        self._old_handlers: dict[int, object] = {}

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
        """Call this when the loop is stopping. It ends the deadline."""
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
        _active = self
        self._thread = threading.Thread(target=self._listen, name="stop signals", daemon=True)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        global _active
        if _active is not self:
            return
        _active = None
        for number, handler in self._old_handlers.items():
            signal.signal(number, handler)  # type: ignore[arg-type]
        signal.set_wakeup_fd(self._old_wakeup_fd)
        self._sender.close()  # this ends the thread
        self._thread.join()
        self._receiver.close()

    def _handle(self, number: int, frame: FrameType | None) -> None:
        self._requested = self._requested or number

    def _listen(self) -> None:
        first = 0.0  # the time of the first request
        while True:
            counting = first and self.multi_process and not self._acknowledged
            self._receiver.settimeout(max(0.01, self._deadline(first) - time.monotonic()) if counting else None)
            try:
                data = self._receiver.recv(64)
            except TimeoutError:
                if not self._acknowledged and time.monotonic() >= self._deadline(first):
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
                first = first or now
                self._requested = self._requested or number

    def _deadline(self, first: float) -> float:
        """Return the time at which the loop counts as stuck, unless it reads `requested` before."""
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
        for number, handler in _active._old_handlers.items():
            signal.signal(number, handler)  # type: ignore[arg-type]
        _active = None
        signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before_fork, after_in_parent=_after_fork, after_in_child=_after_fork_in_child)
