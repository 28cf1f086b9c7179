"""Processes that run untrusted work with limits on time and memory: chat templates, and constraints of other people.

If the work takes too long, needs too much memory or crashes a native library, only this process ends.
"""

import atexit
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from threading import Lock, Timer
from typing import Any

PROGRAM = Path(__file__).with_name("program.py")


@dataclass(frozen=True)
class ProcessLimits:
    """The limits of one piece of work."""

    max_seconds: int  # of CPU time
    max_bytes: int  # of memory
    max_wall_seconds: float  # on a busy machine, the process waits for the CPU


class Sandbox:
    """Runs the function `answer` of a Python file in one process, which starts with the first call.

    If a call ends the process, the next call starts another. Every method may be called from any thread.
    """

    def __init__(self, worker: Path, limits: ProcessLimits) -> None:
        """`worker` is the file. It may import other packages, but none of its neighbours."""
        self.worker, self.limits = worker, limits
        self._lock = Lock()
        self._process: subprocess.Popen[bytes] | None = None

    def run(self, shared: Any, items: Sequence[Any]) -> list[dict[str, Any]]:
        """Call `answer(shared, item)` for each item. The results are {"result": …} or {"error": "the reason"}."""
        if not items:
            return []
        limits = {"max_seconds": self.limits.max_seconds, "max_bytes": self.limits.max_bytes}
        request = json.dumps({"shared": shared, "items": items, **limits}).encode() + b"\n"
        with self._lock:
            answers: list[dict[str, Any]] = []
            try:
                answers = self._ask(request)
            finally:
                if not answers:  # after an interruption, the next caller must not get these answers
                    self._stop()
        if len(items) > 1 and len(answers) != len(items):  # one of the items has ended the process
            return [self.run(shared, [item])[0] for item in items]
        return answers or [{"error": "it needs too much time or memory"}]

    def close(self) -> None:
        """End the process."""
        with self._lock:
            self._stop()

    def _ask(self, request: bytes) -> list[dict[str, Any]]:
        """Send a request and return the answers. There are none if the process has ended."""
        if self._process is None or self._process.poll() is not None:
            self._stop()
            self._process = subprocess.Popen(
                [sys.executable, "-P", str(PROGRAM), str(self.worker)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                process_group=0,  # Ctrl-C is for the program that waits for it
            )
        process = self._process
        assert process.stdin is not None
        assert process.stdout is not None
        timer = Timer(self.limits.max_wall_seconds, process.kill)
        timer.start()
        try:
            process.stdin.write(request)
            process.stdin.flush()
            line = process.stdout.readline()
            answers: list[dict[str, Any]] = json.loads(line) if line.endswith(b"\n") else []
            return answers
        except OSError:
            return []
        except ValueError:
            return [{"error": "its output cannot be read"}]
        finally:
            timer.cancel()

    def _stop(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            with suppress(OSError), process:  # closes the pipes and waits for the end
                process.kill()


_SANDBOXES: dict[tuple[int, Path], Sandbox] = {}  # by the id of this process, because a fork must not share its pipes


def shared_sandbox(worker: Path, limits: ProcessLimits) -> Sandbox:
    """Return the sandbox of a worker that all calls in this process share."""
    key = os.getpid(), worker
    if key not in _SANDBOXES:
        atexit.register(_SANDBOXES.setdefault(key, Sandbox(worker, limits)).close)
    return _SANDBOXES[key]
