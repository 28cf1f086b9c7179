"""Coordination of several ranks that save one checkpoint together, through files in its folder.

Each rank writes its shard into the same hidden folder, and then a part file that describes the shard
(`part-00001.json`), or the reason of a failure (`failed-00001.txt`). Rank 0 waits for all part files and combines them
into the manifest. The other ranks wait until rank 0 has renamed the folder. Ranks do not use collectives here, because
saving runs in a background thread: its collectives could get mixed up with the collectives of the training.
"""

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from qkv.errors import QkvError
from qkv.files import sync_folder
from qkv.train.checkpoint.files import MANIFEST_FILE, read_checksummed, remove_folder, shard_name, write_checksummed
from qkv.train.checkpoint.reader import group_slices

ShardInfo = dict[str, Any]
"""The manifest's description of one shard, as returned by `write_shard`."""


class ShardCoordinator:
    """Coordinates rank `rank` with the others. `folder` has the shards; a rank waits at most `timeout_seconds`."""

    def __init__(self, folder: Path, rank: int, world_size: int, timeout_seconds: float) -> None:
        self.folder = folder
        self.rank, self.world_size, self.timeout_seconds = rank, world_size, timeout_seconds

    def publish(self, shard: ShardInfo) -> None:
        """Write the part file, which tells rank 0 that this rank's shard is on disk."""
        sync_folder(self.folder)  # before the part file exists: after that, rank 0 may move or delete the folder
        write_checksummed(self._part_path(self.rank), shard)

    def collect(self, own: ShardInfo) -> list[ShardInfo]:
        """On rank 0: wait for the shards of all other ranks. Return the descriptions of all shards, `own` first."""
        waiting = set(range(1, self.world_size))
        for _ in self._poll():
            names = set(os.listdir(self.folder))
            for rank in sorted(waiting):
                if self._failure_path(rank).name in names:
                    reason = self._failure_path(rank).read_text(encoding="utf-8")
                    raise QkvError(
                        f"rank {rank} could not write its part of a checkpoint: {reason}; fix this, then resume"
                    )
            waiting = {rank for rank in waiting if self._part_path(rank).name not in names}
            if not waiting:
                break
        else:
            raise QkvError(
                f"{self.folder}: the shard of rank {min(waiting)} did not arrive within {self.timeout_seconds:.0f} s; "
                "all ranks must see the same run folder: put it on a disk that their machines share"
            )
        shards = [own, *(read_checksummed(self._part_path(rank)) for rank in range(1, self.world_size))]
        for shard in shards:
            path = self.folder / shard["file"]
            if not path.exists() or path.stat().st_size != shard["bytes"]:
                raise QkvError(
                    f"{path}: this file is missing or does not have the size that rank {shard['rank']} wrote; another "
                    "job may be using this folder: stop it, or train in another folder with run=…"
                )
        group_slices(shards)  # raises if the slices do not make up whole tensors, which would be a bug in qkv
        return shards

    def remove_part_files(self) -> None:
        """Delete the part files. Their content is in the manifest now."""
        for rank in range(1, self.world_size):
            self._part_path(rank).unlink()

    def wait_for_completion(self, destination: Path) -> None:
        """Wait until rank 0 has completed the checkpoint, which moves this rank's shard to `destination`.

        This waits for the shard to disappear, not the folder: a later save of the same step may already have created a
        new folder of that name.
        """
        own = self.folder / shard_name(self.rank, self.world_size)
        for _ in self._poll():
            if not own.exists():
                break
        else:
            raise QkvError(
                f"{self.folder}: rank 0 did not complete this checkpoint within {self.timeout_seconds:.0f} s; see its "
                "error message"
            )
        if not (destination / MANIFEST_FILE).exists():
            raise QkvError(f"{destination}: rank 0 could not complete this checkpoint; see its error message")

    def abort(self, reason: object) -> None:
        """Delete this rank's files, and write down the reason, so that rank 0 does not wait."""
        if self.rank == 0:
            remove_folder(self.folder)
            return
        for path in self.folder.glob(f"shard-{self.rank:05d}-*"):
            path.unlink(missing_ok=True)
        try:
            self._failure_path(self.rank).write_text(str(reason), encoding="utf-8")
        except OSError:
            return  # rank 0 then waits until its timeout

    def _poll(self) -> Iterator[None]:
        """Yield at growing intervals until the timeout."""
        end, pause = time.monotonic() + self.timeout_seconds, 0.005
        while time.monotonic() < end:
            yield
            time.sleep(pause)
            pause = min(2 * pause, 0.5)

    def _part_path(self, rank: int) -> Path:
        return self.folder / f"part-{rank:05d}.json"

    def _failure_path(self, rank: int) -> Path:
        return self.folder / f"failed-{rank:05d}.txt"
