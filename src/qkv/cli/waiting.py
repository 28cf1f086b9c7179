"""How the threads of torch wait for each other.

On Linux they are libgomp's, and between two pieces of work they look out for the next one again and again, for
milliseconds, before they sleep. That is the fastest way while the cores are theirs. Where other programs want them, a
thread may so hold the very core that the one it waits for should run on: a step then takes a hundred times as long.
So they sleep soon, and at once where the cores are in use already. No result depends on it.
"""

import os
import time
from collections.abc import MutableMapping
from pathlib import Path

SPINS = 5_000
"""How often a thread looks before it sleeps, where libgomp would 300,000 times: long enough for the usual pause."""
BUSY = 0.5
"""From so many cores in use by others on, threads sleep at once: on a quiet machine that would nearly double a step."""


def wait_briefly(environment: MutableMapping[str, str], busy: bool) -> None:
    """Let threads sleep soon, `busy` at once, unless the user has said how they are to wait.

    Libgomp reads this when it is loaded, so before torch is.

    >>> wait_briefly(environment := {}, busy=False)
    >>> environment
    {'GOMP_SPINCOUNT': '5000'}
    """
    if "OMP_WAIT_POLICY" not in environment:
        environment.setdefault("GOMP_SPINCOUNT", str(0 if busy else SPINS))


def cores_in_use(seconds: float = 0.1) -> float:
    """How many cores other programs use, found by sleeping for so long; 0 where the system does not tell."""
    stat = Path("/proc/stat")
    if not stat.exists():
        return 0.0
    before, start = worked(stat.read_text()), time.perf_counter()
    time.sleep(seconds)
    return (worked(stat.read_text()) - before) / (time.perf_counter() - start)


def worked(stat: str) -> float:
    """The seconds that all cores have worked since the start: user, nice and system of the first line.

    >>> ticks = os.sysconf("SC_CLK_TCK")
    >>> worked(f"cpu  {ticks} 0 {2 * ticks} 900 0 0 0 0 0 0\\ncpu0 5 0 5 5")
    3.0
    """
    return sum(map(int, stat.split(maxsplit=4)[1:4])) / os.sysconf("SC_CLK_TCK")
