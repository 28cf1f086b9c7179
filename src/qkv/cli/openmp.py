"""How the threads of torch wait for each other.

On Linux they are libgomp's, and between two pieces of work they look out for the next one again and again, for
milliseconds, before they sleep. That is the fastest way while the cores are theirs. Where other programs want them, a
thread may so hold the very core that the one it waits for should run on: a step then takes a hundred times as long.
So they sleep soon, and at once where the cores are in use already. No result depends on it.
"""

import os
import time
from collections.abc import Collection, MutableMapping
from pathlib import Path

SPIN_COUNT = 5_000
"""How often a thread looks before it sleeps, where libgomp would 300,000 times: long enough for the usual pause."""
BUSY_FRACTION = 0.25
"""From this share of our cores in use by others on, threads sleep at once: else that would nearly double a step."""


def limit_spinning(environment: MutableMapping[str, str], busy: bool) -> None:
    """Let threads sleep soon, `busy` at once, unless the user has said how they are to wait.

    Libgomp reads this when it is loaded, so before torch is.

    >>> limit_spinning(environment := {}, busy=False)
    >>> environment
    {'GOMP_SPINCOUNT': '5000'}
    """
    if "OMP_WAIT_POLICY" not in environment:
        environment.setdefault("GOMP_SPINCOUNT", str(0 if busy else SPIN_COUNT))


def fraction_in_use(seconds: float = 0.1) -> float:
    """The share of our cores that other programs use, found by sleeping; 0 where the system does not tell."""
    stat = Path("/proc/stat")
    if not stat.exists():
        return 0.0
    ours = os.sched_getaffinity(0)
    before, start = busy_seconds(stat.read_text(), ours), time.perf_counter()
    time.sleep(seconds)
    return (busy_seconds(stat.read_text(), ours) - before) / (time.perf_counter() - start) / len(ours)


def busy_seconds(stat: str, cores: Collection[int]) -> float:
    """The seconds that some cores have worked since the start: user, nice and system of their lines.

    >>> ticks = os.sysconf("SC_CLK_TCK")
    >>> busy_seconds(f"cpu  9 9 9 9\\ncpu0 {ticks} 0 {2 * ticks} 900 0 0\\ncpu1 5 5 5 5\\nintr 5", {0})
    3.0
    """
    lines = (line.split() for line in stat.splitlines() if line.startswith("cpu") and line[3:4].isdigit())
    ticks = sum(sum(map(int, times[:3])) for name, *times in lines if int(name[3:]) in cores)
    return ticks / os.sysconf("SC_CLK_TCK")
