"""Stop signals: SIGINT (Ctrl-C) and SIGTERM stop a run after the current step, with a last checkpoint.

Python runs signal handlers between two of its own instructions, so a process that is stuck inside a collective would
never run one. The signal's number is therefore also sent through a socket (`signal.set_wakeup_fd`, to which the
low-level handler writes) to a thread that counts the requests and the seconds.
"""

import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType, TracebackType

SIGNALS = (signal.SIGINT, signal.SIGTERM)
SAME_REQUEST_SECONDS = 1.0
"""Signals this close together are one request: Ctrl-C reaches every process, and then torchrun sends it again."""
DEADLINE_SECONDS = 8.0
MAX_DEADLINE_SECONDS = 25.0
"""Below the 30 s that torchrun waits between SIGTERM and SIGKILL."""

_active: "StopSignals | None" = None


class StopSignals:
    """Catches stop signals inside a `with` block. `requested` is the first signal that arrived.

    A second request exits the process immediately, with code 128 + the signal's number. With `multi_process`, so does
    a first one if the loop has not read `requested` for `DEADLINE_SECONDS` (or twice the longest time between two
    reads so far, up to `MAX_DEADLINE_SECONDS`): it is then waiting for a rank that is gone. `no_deadline()` suspends
    this for work that takes long, and after `acknowledge()` there is no deadline any more. `on_exit` is called before
    such an exit.

    >>> with StopSignals(multi_process=world.size > 1) as signals:
    ...     while not signals.requested:
    ...         step()
    ...     signals.acknowledge()
    ...     save()
    """

    def __init__(self, multi_process: bool = False, on_exit: Callable[[], None] | None = None) -> None:
        self.multi_process = multi_process
        self._requested: int | None = None
        self._last_check, self._longest_gap = time.monotonic(), 0.0
        self._on_exit = on_exit
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

    @property
    def exit_code(self) -> int:
        """The exit code of the process: 130 after SIGINT, 143 after SIGTERM, 0 without a signal."""
        return 128 + self._requested if self._requested else 0

    def acknowledge(self) -> None:
        """The caller is stopping: from here on there is no deadline."""
        self._acknowledged = True

    @contextmanager
    def no_deadline(self) -> Iterator[None]:
        """Suspend the deadline for work that takes longer than a step, such as an evaluation.

        A lost process is then noticed by its heartbeat.
        """
        self._check_in()
        self._has_no_deadline = True
        try:
            yield
        finally:
            self._last_check = time.monotonic()  # the time spent here is not that of a step
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
                    self._exit(self._requested or signal.SIGTERM)
                continue
            if not data:  # the other end is closed
                return
            for number in data:
                if number not in self._old_handlers:
                    continue  # a signal that another handler catches
                now = time.monotonic()
                if first and now - first > SAME_REQUEST_SECONDS:
                    self._exit(number)
                first = first or now
                self._requested = self._requested or number

    def _deadline(self, first: float) -> float:
        """The time at which a loop that has not checked in since then counts as stuck."""
        checked = time.monotonic() if self._has_no_deadline else self._last_check
        return max(first, checked) + min(max(DEADLINE_SECONDS, 2 * self._longest_gap), MAX_DEADLINE_SECONDS)

    def _exit(self, number: int) -> None:
        try:
            if self._on_exit is not None:
                self._on_exit()
        finally:
            os._exit(128 + number)


# A forked process inherits its parent's socket and handlers. A signal to it must not look like a request to the parent,
# not even in its first instant. So signals are blocked until the child has dropped both.


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
