"""A heartbeat in every rank. If a rank dies or freezes, the others report which rank it was, and exit.

A collective waits for all ranks, so one frozen rank would block all others until the timeout of half an hour. A thread
in each rank therefore writes a beat into the rendezvous store, and reads the beat of its neighbour, the next rank. If
the neighbour is silent for too long, the rank writes this into the store. All other ranks read it with their next beat,
and exit. Each rank watches only one other, so the number of requests grows with the number of ranks, not its square.

The main thread may be stuck in a collective, so a rank exits with `os._exit`, and saves nothing. The run can be resumed
from its newest checkpoint.
"""

import logging
import os
import threading
import time
from datetime import timedelta
from typing import Any

import torch.distributed as dist

log = logging.getLogger("qkv")

BEAT_SECONDS = 2.0
"""Seconds between beats."""
SILENCE_SECONDS = 20.0
"""Seconds without a beat after which a rank counts as lost."""
GRACE_SECONDS = 4.0
"""Seconds between the loss of a rank and the exit of the others, in which they can report their own errors."""
LOST_KEY, LEFT_VALUE = "qkv/lost", "left"


class Heartbeat:
    """Sends beats for this rank, and watches the next rank."""

    def __init__(
        self,
        store: Any,
        rank: int,
        size: int,
        *,
        every: float = BEAT_SECONDS,
        limit: float = SILENCE_SECONDS,
        grace: float = GRACE_SECONDS,
    ) -> None:
        self.store, self.rank, self.size = store, rank, size
        self.every, self.limit, self.grace = every, limit, grace
        self.parent = os.getppid()
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="heartbeat", daemon=True)

    @classmethod
    def from_environment(cls, rank: int, size: int) -> "Heartbeat":
        """Make a heartbeat with its own connection to the rendezvous store, at MASTER_ADDR and MASTER_PORT."""
        host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
        make: Any = getattr(dist, "TCPStore")  # noqa: B009 - some builds of torch lack it
        store = make(host, port, is_master=False, timeout=timedelta(seconds=SILENCE_SECONDS), wait_for_workers=False)
        return cls(store, rank, size)

    def start(self) -> None:
        """Start the heartbeat. The caller must then wait for all ranks (`init_world` has a barrier).

        Otherwise a rank could be watched before it has started.
        """
        self.store.set(self._key(self.rank), "0")
        if self.rank == 0:
            self.store.set(LOST_KEY, "")
        self._thread.start()

    def stop(self, *, failed: bool = False) -> None:
        """Stop the heartbeat. With `failed`, write into the store that this rank failed, so that the others exit."""
        if self._stopped.is_set():
            return
        self._stopped.set()
        self._thread.join(self.limit)
        try:
            if failed:
                self.store.set(LOST_KEY, f"rank {self.rank} failed")
            else:
                self.store.set(self._key(self.rank), LEFT_VALUE)
        except RuntimeError:
            log.debug("the rendezvous store is gone already")

    def _run(self) -> None:
        beats, neighbour = 0, (self.rank + 1) % self.size
        last_beat = ""
        last_turn = last_answer = last_change = time.monotonic()
        while not self._stopped.wait(self.every):
            now = time.monotonic()
            if os.getppid() != self.parent:
                self._exit("its parent process is gone")
            # If this process was suspended, what it knows about the other ranks is outdated: restart the clocks.
            if now - last_turn > self.limit / 2:
                last_answer = last_change = now
            last_turn = now
            beats += 1
            try:
                self.store.set(self._key(self.rank), str(beats))
                beat, lost = (value.decode() for value in self.store.multi_get([self._key(neighbour), LOST_KEY]))
            except RuntimeError as error:
                if time.monotonic() - last_answer > self.limit and not self._stopped.is_set():
                    self._exit(f"the rendezvous store does not answer any more ({error})")
                continue
            last_turn = last_answer = time.monotonic()
            if lost:
                self._stopped.wait(self.grace)
                self._exit(lost)
            if beat == LEFT_VALUE:
                neighbour = (neighbour + 1) % self.size
                if neighbour == self.rank:
                    return
                last_change = last_turn
            elif beat != last_beat:
                last_beat, last_change = beat, last_turn
            elif last_turn - last_change > self.limit:
                lost = f"rank {neighbour} has sent no heartbeat for {self.limit:g} s"
                self.store.set(LOST_KEY, lost)
                self._exit(lost)

    def _exit(self, why: str) -> None:
        """Exit this process, even if its main thread is stuck."""
        if self._stopped.is_set():
            return
        log.critical(
            "rank %d of %d exits: %s. The run can be resumed from its newest checkpoint", self.rank, self.size, why
        )
        logging.shutdown()
        os._exit(1)

    def _key(self, rank: int) -> str:
        return f"qkv/beat/{rank}"
