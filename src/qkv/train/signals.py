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
SAME_REQUEST_S = 1.0
"""Signals so close together are one request: Ctrl-C reaches every process, and then torchrun passes it on again."""
DEADLINE_S = 8.0
LONGEST_S = 25.0
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

    def __init__(self, several: bool = False, last_words: Callable[[], None] | None = None) -> None:
        self.several = several
        self._asked: int | None = None
        self._looked, self._longest = time.monotonic(), 0.0
        self._last_words = last_words
        self._honoured = self._unhurried = False
        self._before: dict[int, object] = {}

    @property
    def asked(self) -> int | None:
        """The first signal that came, or None."""
        self._look()
        return self._asked

    def _look(self) -> None:
        now = time.monotonic()
        if self._asked is None:
            self._longest = max(self._longest, now - self._looked)
        self._looked = now

    @property
    def exit_code(self) -> int:
        """What the process should end with: 130 after SIGINT, 143 after SIGTERM, 0 if none came."""
        return 128 + self._asked if self._asked else 0

    def honoured(self) -> None:
        """Say that the request is being acted upon, so that no deadline counts any more."""
        self._honoured = True

    @contextmanager
    def unhurried(self) -> Iterator[None]:
        """For what may rightly take longer than any step, as an evaluation does: inside, no deadline passes.

        A process that is gone is then noticed by its heartbeat.
        """
        self._look()
        self._unhurried = True
        try:
            yield
        finally:
            self._looked = time.monotonic()  # how long this took says nothing about steps
            self._unhurried = False

    def __enter__(self) -> "StopSignals":
        global _active
        if threading.current_thread() is not threading.main_thread():
            return self  # only the main thread may listen; then nothing is ever asked
        self._ears, self._mouth = socket.socketpair()
        self._mouth.setblocking(False)
        self._old_mouth = signal.set_wakeup_fd(self._mouth.fileno(), warn_on_full_buffer=False)
        for number in SIGNALS:
            if signal.getsignal(number) is not signal.SIG_IGN:  # as in a job that a shell put into the background
                self._before[number] = signal.signal(number, self._heard)
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
        for number, handler in self._before.items():
            signal.signal(number, handler)  # type: ignore[arg-type]
        signal.set_wakeup_fd(self._old_mouth)
        self._mouth.close()  # which ends the thread
        self._thread.join()
        self._ears.close()

    def _heard(self, number: int, frame: FrameType | None) -> None:
        self._asked = self._asked or number

    def _listen(self) -> None:
        first = 0.0  # when
        while True:
            counting = first and self.several and not self._honoured
            self._ears.settimeout(max(0.01, self._due(first) - time.monotonic()) if counting else None)
            try:
                data = self._ears.recv(64)
            except TimeoutError:
                if not self._honoured and time.monotonic() >= self._due(first):
                    self._end(self._asked or signal.SIGTERM)
                continue
            if not data:  # the other end is closed
                return
            for number in data:
                if number not in self._before:
                    continue  # another signal that Python listens to
                now = time.monotonic()
                if first and now - first > SAME_REQUEST_S:
                    self._end(number)
                first = first or now
                self._asked = self._asked or number

    def _due(self, first: float) -> float:
        """When a process that has not looked since is taken to be stuck."""
        looked = time.monotonic() if self._unhurried else self._looked
        return max(first, looked) + min(max(DEADLINE_S, 2 * self._longest), LONGEST_S)

    def _end(self, number: int) -> None:
        try:
            if self._last_words is not None:
                self._last_words()
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
        for number, handler in _active._before.items():
            signal.signal(number, handler)  # type: ignore[arg-type]
        _active = None
        signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before_fork, after_in_parent=_after_fork, after_in_child=_after_fork_in_child)
