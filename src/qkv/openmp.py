"""Limit how long torch's CPU threads spin while they wait for work.

On Linux, torch uses libgomp's threads. Before an idle thread sleeps, it spins for milliseconds, which is fastest while
the cores are free. If other programs use the cores, a spinning thread can keep a working thread from its core, and a
training step takes a hundred times as long. So threads spin only briefly if qkv is imported before torch, and commands
let them not spin at all if the cores are already in use. Results do not depend on this.
"""

import os
import time
from collections.abc import Collection, MutableMapping
from pathlib import Path

SPIN_COUNT = 5_000
"""The number of spins before a thread sleeps; libgomp's default is 300,000. It covers the usual wait."""
BUSY_FRACTION = 0.25
"""If other programs use more than this fraction of our cores, spinning doubles the time of a step; it is turned off."""


def limit_spinning(environment: MutableMapping[str, str], busy: bool) -> None:
    """Set the environment variable that limits spinning, unless the user has set it. If `busy`, threads do not spin.

    Libgomp reads the variable when it is loaded, so call this before torch is imported.

    >>> limit_spinning(environment := {}, busy=False)
    >>> environment
    {'GOMP_SPINCOUNT': '5000'}
    """
    ours = str(SPIN_COUNT)
    if "OMP_WAIT_POLICY" not in environment and environment.get("GOMP_SPINCOUNT", ours) == ours:
        environment["GOMP_SPINCOUNT"] = "0" if busy else ours


def fraction_in_use(seconds: float = 0.1) -> float:
    """Measure the fraction of our cores that other programs use, during a short sleep; 0 if it is unknown."""
    stat = Path("/proc/stat")
    if not stat.exists():
        return 0.0
    cores = os.sched_getaffinity(0)
    before, start = busy_seconds(stat.read_text(), cores), time.perf_counter()
    time.sleep(seconds)
    return (busy_seconds(stat.read_text(), cores) - before) / (time.perf_counter() - start) / len(cores)


def busy_seconds(stat: str, cores: Collection[int]) -> float:
    """The seconds since boot in which some cores were busy: user, nice and system time in /proc/stat.

    >>> ticks = os.sysconf("SC_CLK_TCK")
    >>> busy_seconds(f"cpu  9 9 9 9\\ncpu0 {ticks} 0 {2 * ticks} 900 0 0\\ncpu1 5 5 5 5\\nintr 5", {0})
    3.0
    """
    lines = (line.split() for line in stat.splitlines() if line.startswith("cpu") and line[3:4].isdigit())
    ticks = sum(sum(map(int, times[:3])) for name, *times in lines if int(name[3:]) in cores)
    return ticks / os.sysconf("SC_CLK_TCK")
