"""The share of the cores that a run gets on a busy machine, and the time that its threads compute.

Linux counts for each thread how long it ran, and how long it waited for a core that other programs used. The share is
the fraction of both that it ran. It is 1 on a free machine, however many threads there are.
"""

import math
import time
from contextlib import suppress
from pathlib import Path

THREADS = Path("/proc/self/task")
BUSY_SHARE = 0.8
"""With a smaller share, other programs slow a run down so much that it is told."""


class CoreShare:
    """Measures the share since it was made, or since it was last asked."""

    def __init__(self) -> None:
        self.last = thread_times()

    def measure(self) -> float:
        """Return the share since the last call; NaN if the system does not say, or if no thread ran."""
        before, self.last = self.last, thread_times()
        ran, waited = (max(0.0, now - then) for now, then in zip(self.last, before, strict=True))
        return ran / (ran + waited) if ran + waited > 0 else math.nan


def thread_times() -> tuple[float, float]:
    """Return the seconds that the threads of this process ran, and that they waited for a core; 0 if unknown."""
    ran = waited = 0
    for thread in THREADS.glob("*/schedstat"):
        with suppress(OSError, ValueError):  # a thread that has just ended
            run, wait, *_ = map(int, thread.read_text().split())
            ran, waited = ran + run, waited + wait
    return ran / 1e9, waited / 1e9


def cpu_seconds() -> float:
    """Return the time that all threads of this process have computed."""
    return time.process_time()
