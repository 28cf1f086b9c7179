"""Being asked to stop: SIGINT (Ctrl-C) and SIGTERM end a run after the step that it is in, with a last checkpoint.

Python runs signal handlers between two of its own instructions, so a process that is stuck inside a collective would
never hear one. The signal's number is therefore also sent through a socket (`signal.set_wakeup_fd`, which the system's
own handler writes to) to a thread that counts the requests and the seconds.
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
"""Signals so close together are one request: Ctrl-C reaches every process, and then torchrun passes it on again."""
DEADLINE_SECONDS = 8.0
MAX_DEADLINE_SECONDS = 25.0
"""torchrun waits 30 s between the SIGTERM that it sends and the SIGKILL."""

_active: "StopSignals | None" = None


class StopSignals:
    """Listens while its block runs. `asked` is the first signal that came.

    A second request ends the process at once, with 128 + the signal's number. So does a first one, in a run of
    `several` processes, when the loop has not looked at `asked` for `DEADLINE_S` seconds (or twice the longest time
    that it ever took between two looks, up to `LONGEST_S`): then it is waiting for a process that is gone. Inside
    `unhurried()` that is not concluded, and `honoured()` says that the request is being acted upon and that no deadline
    counts any more. `last_words` is called before the process is ended in either way.

    >>> with StopSignals(several=world.size > 1) as stop:
    ...     while not stop.asked:
    ...         step()
    ...     stop.honoured()
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
        """The first signal that came, or None."""
        self._check_in()
        return self._requested

    def _check_in(self) -> None:
        now = time.monotonic()
        if self._requested is None:
            self._longest_gap = max(self._longest_gap, now - self._last_check)
        self._last_check = now

    @property
    def exit_code(self) -> int:
        """What the process should end with: 130 after SIGINT, 143 after SIGTERM, 0 if none came."""
        return 128 + self._requested if self._requested else 0

    def acknowledge(self) -> None:
        """Say that the request is being acted upon, so that no deadline counts any more."""
        self._acknowledged = True

    @contextmanager
    def no_deadline(self) -> Iterator[None]:
        """For what may rightly take longer than any step, as an evaluation does: inside, no deadline passes.

        A process that is gone is then noticed by its heartbeat.
        """
        self._check_in()
        self._has_no_deadline = True
        try:
            yield
        finally:
            self._last_check = time.monotonic()  # how long this took says nothing about steps
            self._has_no_deadline = False

    def __enter__(self) -> "StopSignals":
        global _active
        if threading.current_thread() is not threading.main_thread():
            return self  # only the main thread may listen; then nothing is ever asked
        self._receiver, self._sender = socket.socketpair()
        self._sender.setblocking(False)
        self._old_wakeup_fd = signal.set_wakeup_fd(self._sender.fileno(), warn_on_full_buffer=False)
        for number in SIGNALS:
            if signal.getsignal(number) is not signal.SIG_IGN:  # as in a job that a shell put into the background
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
        self._sender.close()  # which ends the thread
        self._thread.join()
        self._receiver.close()

    def _handle(self, number: int, frame: FrameType | None) -> None:
        self._requested = self._requested or number

    def _listen(self) -> None:
        first = 0.0  # when
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
                    continue  # another signal that Python listens to
                now = time.monotonic()
                if first and now - first > SAME_REQUEST_SECONDS:
                    self._exit(number)
                first = first or now
                self._requested = self._requested or number

    def _deadline(self, first: float) -> float:
        """When a process that has not looked since is taken to be stuck."""
        looked = time.monotonic() if self._has_no_deadline else self._last_check
        return max(first, looked) + min(max(DEADLINE_SECONDS, 2 * self._longest_gap), MAX_DEADLINE_SECONDS)

    def _exit(self, number: int) -> None:
        try:
            if self._on_exit is not None:
                self._on_exit()
        finally:
            os._exit(128 + number)


# A forked process has its parent's socket and handlers. What it is sent must not look as if the parent had been asked
# to stop, not even in its first instant: so signals wait until it has let go of both.


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
