"""Start several processes on one machine, as torchrun does, for `qkv train --processes N …`.

    exit_code = launch(4, ["train", "recipe.toml"])        # python -m qkv train recipe.toml, four times

The processes find each other by the environment variables that torchrun sets. Rank 0 uses the terminal. The output of
the other ranks goes to stderr, with the rank before each line. The launcher forwards signals and then waits, so that
the run can save a checkpoint. If one process fails, the launcher terminates the others, and kills them soon after.
"""

import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from types import FrameType
from typing import IO

from qkv.errors import UsageError
from qkv.plugins import child_environment

log = logging.getLogger("qkv")

FAILURE_GRACE_SECONDS = 9.0
"""Seconds between SIGTERM and SIGKILL for the remaining processes after one has failed."""
STOP_GRACE_SECONDS = 120.0
"""After a signal from the user: seconds between the first exit with an error code and SIGKILL for the other processes.
(A stopped process exits with 128 + signal.) The time is long, because the processes save a checkpoint."""
POLL_SECONDS = 0.05


def launch(processes: int, arguments: Sequence[str], *, command: Sequence[str] | None = None) -> int:
    """Run `command` (by default qkv) with these arguments in N processes. Return the exit code of the first failure."""
    if processes < 1:
        raise UsageError(f"--processes {processes} must be at least 1")
    from torch.distributed import TCPStore  # type: ignore[attr-defined]  # imports torch, which `qkv --help` must not

    # The rendezvous store is in the launcher, so that the ranks can still read it after any of them has died.
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    line = [*(command or (sys.executable, "-m", "qkv")), *arguments]
    group = LocalProcesses(processes, line, store.port)
    listening = (signal.SIGINT, signal.SIGTERM) if threading.current_thread() is threading.main_thread() else ()
    before = {number: signal.signal(number, group.forward_signal) for number in listening}
    try:
        group.start()
        return group.wait()
    finally:
        group.kill()
        for number, handler in before.items():
            signal.signal(number, handler)


class LocalProcesses:
    """The processes of one launch."""

    def __init__(self, size: int, command: list[str], port: int) -> None:
        self.size, self.command, self.port = size, command, port
        self.running: dict[int, subprocess.Popen[bytes]] = {}
        self.stop_signal = 0  # the first signal from the user
        self._readers: list[threading.Thread] = []

    def start(self) -> None:
        """Start all processes."""
        for rank in range(self.size):
            first = rank == 0
            process = subprocess.Popen(
                self.command,
                env=self._environment(rank),
                stdin=None if first else subprocess.DEVNULL,
                stdout=None if first else subprocess.PIPE,
                stderr=None if first else subprocess.STDOUT,
                start_new_session=True,  # so that Ctrl-C reaches only the launcher, which forwards it once
            )
            self.running[rank] = process
            if process.stdout is not None:
                reader = threading.Thread(target=_relay, args=(rank, process.stdout), daemon=True)
                reader.start()
                self._readers.append(reader)

    def _environment(self, rank: int) -> dict[str, str]:
        threads = max(1, (os.cpu_count() or 1) // self.size)
        return {
            "OMP_NUM_THREADS": str(threads),  # the environment overrides it
            **child_environment(),
            "RANK": str(rank),
            "LOCAL_RANK": str(rank),
            "WORLD_SIZE": str(self.size),
            "LOCAL_WORLD_SIZE": str(self.size),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(self.port),
            "TORCHELASTIC_USE_AGENT_STORE": "True",  # rank 0 must use the launcher's store, and not open its own
        }

    def forward_signal(self, number: int, frame: FrameType | None = None) -> None:
        """Send a signal to every process."""
        self.stop_signal = self.stop_signal or number
        for process in self.running.values():
            process.send_signal(number)

    def wait(self) -> int:
        """Wait for all processes. Return the exit code.

        If a process freezes, the heartbeats of the other ranks end the processes of these ranks.
        """
        code, until = 0, float("inf")
        while self.running:
            for rank, process in list(self.running.items()):
                ended = process.poll()
                if ended is None:
                    continue
                del self.running[rank]
                if ended and not code:
                    code = 128 - ended if ended < 0 else ended
                    until = time.monotonic() + (STOP_GRACE_SECONDS if self.stop_signal else FAILURE_GRACE_SECONDS)
                    if not self.stop_signal:
                        how = f"failed with exit code {ended}"
                        how = f"was killed by {signal.Signals(-ended).name}" if ended < 0 else how
                        log.error("rank %d of %d %s; stopping the others", rank, self.size, how)
                        for other in self.running.values():
                            other.terminate()
            if time.monotonic() > until:
                self.kill()
            time.sleep(POLL_SECONDS)
        for reader in self._readers:
            reader.join(1.0)
        return code

    def kill(self) -> None:
        """Kill the processes that are still running."""
        for process in self.running.values():
            process.kill()
            process.wait()
        self.running.clear()


def _relay(rank: int, lines: IO[bytes]) -> None:
    """Copy the output of a rank to stderr, with the rank before each line."""
    for line in lines:
        sys.stderr.write(f"[{rank}] {line.decode('utf-8', errors='replace').rstrip()}\n")
        sys.stderr.flush()
