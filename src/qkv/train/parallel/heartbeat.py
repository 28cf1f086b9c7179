"""A heartbeat in every process: when one dies or freezes, the others end too, and say which one it was.

A collective waits for everybody, so one frozen process would hold up all of them until its time limit, half an hour
later. Each process writes a beat into the store that the processes met in, from a thread of its own, and listens to
its neighbour's. Whoever hears nothing for too long writes down who was lost; everybody reads that with the next beat
and ends. A thousand processes so ask a thousand short questions every two seconds, not a million.

The main thread may be stuck in a collective for good, so a process ends by `os._exit`: nothing is saved at that
moment, and the run goes on from its newest checkpoint.
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
"""Seconds of silence after which a process counts as lost."""
GRACE_SECONDS = 4.0
"""Seconds that a process still has, after it heard of a loss, to say what it has to say itself."""
LOST_KEY, LEFT_VALUE = "qkv/lost", "left"


class Heartbeat:
    """Beats for this process and listens to the next one."""

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
        """With a connection of its own to the store that torchrun's environment names."""
        host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
        make: Any = getattr(dist, "TCPStore")  # noqa: B009 - a torch without it still trains in one process
        store = make(host, port, is_master=False, timeout=timedelta(seconds=SILENCE_SECONDS), wait_for_workers=False)
        return cls(store, rank, size)

    def start(self) -> None:
        """Begin. Nobody listens before all have begun: the caller waits for all after this."""
        self.store.set(self._key(self.rank), "0")
        if self.rank == 0:
            self.store.set(LOST_KEY, "")
        self._thread.start()

    def stop(self, *, failed: bool = False) -> None:
        """End in good order, or (`failed`) tell the others that this process cannot go on."""
        if self._stopped.is_set():
            return
        self._stopped.set()
        self._thread.join(self.limit)
        try:
            if failed:
                self.store.set(LOST_KEY, f"process {self.rank} ended with an error")
            else:
                self.store.set(self._key(self.rank), LEFT_VALUE)
        except RuntimeError:
            log.debug("the store is gone already")

    def _run(self) -> None:
        beats, next_one = 0, (self.rank + 1) % self.size
        last_beat = ""
        turn = answered = heard = time.monotonic()
        # The others start within this limit: `start` is followed by a barrier.
        while not self._stopped.wait(self.every):
            now = time.monotonic()
            if os.getppid() != self.parent:
                self._exit("the process that started this one is gone")
            if now - turn > self.limit / 2:  # this very process was asleep: it cannot judge the others' silence
                answered = heard = now
            turn = now
            beats += 1
            try:
                self.store.set(self._key(self.rank), str(beats))
                beat, lost = (said.decode() for said in self.store.multi_get([self._key(next_one), LOST_KEY]))
            except RuntimeError as error:
                if time.monotonic() - answered > self.limit and not self._stopped.is_set():
                    self._exit(f"the store that processes meet in does not answer any more ({error})")
                continue
            turn = answered = time.monotonic()
            if lost:
                self._stopped.wait(self.grace)
                self._exit(lost)
            if beat == LEFT_VALUE:
                next_one = (next_one + 1) % self.size
                if next_one == self.rank:
                    return
                heard = turn
            elif beat != last_beat:
                last_beat, heard = beat, turn
            elif turn - heard > self.limit:
                lost_one = f"process {next_one} has not been heard from for {self.limit:g} s"
                self.store.set(LOST_KEY, lost_one)
                self._exit(lost_one)

    def _exit(self, why: str) -> None:
        """End this process, wherever its main thread hangs."""
        if self._stopped.is_set():
            return
        log.critical("process %d of %d ends: %s. The run goes on from its newest checkpoint", self.rank, self.size, why)
        logging.shutdown()
        os._exit(1)

    def _key(self, rank: int) -> str:
        return f"qkv/beat/{rank}"
