"""How torch's CPU threads wait for work.

On Linux they are libgomp's threads, which spin for milliseconds between two pieces of work before they sleep. That is
fastest while the cores are free. If other programs use the cores, a spinning thread can occupy the core that the thread
it waits for needs, and a step takes a hundred times as long. So threads spin only briefly, or not at all if the cores
are already in use. Results do not depend on it.
"""

import os
import time
from collections.abc import Collection, MutableMapping
from pathlib import Path

SPIN_COUNT = 5_000
"""Spins before a thread sleeps (libgomp's default is 300,000): long enough for the usual pause."""
BUSY_FRACTION = 0.25
"""Threads do not spin if other programs use more than this fraction of our cores: a step would take twice as long."""


def limit_spinning(environment: MutableMapping[str, str], busy: bool) -> None:
    """Limit the spinning of threads, to zero if the cores are `busy`, unless the user has configured it.

    Libgomp reads this when it is loaded, so it must be set before torch is imported.

    >>> limit_spinning(environment := {}, busy=False)
    >>> environment
    {'GOMP_SPINCOUNT': '5000'}
    """
    if "OMP_WAIT_POLICY" not in environment:
        environment.setdefault("GOMP_SPINCOUNT", str(0 if busy else SPIN_COUNT))


def fraction_in_use(seconds: float = 0.1) -> float:
    """The fraction of our cores that other programs use, measured while we sleep; 0 if it is unknown."""
    stat = Path("/proc/stat")
    if not stat.exists():
        return 0.0
    cores = os.sched_getaffinity(0)
    before, start = busy_seconds(stat.read_text(), cores), time.perf_counter()
    time.sleep(seconds)
    return (busy_seconds(stat.read_text(), cores) - before) / (time.perf_counter() - start) / len(cores)


def busy_seconds(stat: str, cores: Collection[int]) -> float:
    """The busy seconds of some cores since boot: user, nice and system time in /proc/stat.

    >>> ticks = os.sysconf("SC_CLK_TCK")
    >>> busy_seconds(f"cpu  9 9 9 9\\ncpu0 {ticks} 0 {2 * ticks} 900 0 0\\ncpu1 5 5 5 5\\nintr 5", {0})
    3.0
    """
    lines = (line.split() for line in stat.splitlines() if line.startswith("cpu") and line[3:4].isdigit())
    ticks = sum(sum(map(int, times[:3])) for name, *times in lines if int(name[3:]) in cores)
    return ticks / os.sysconf("SC_CLK_TCK")
