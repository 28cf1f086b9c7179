"""How several ranks save one checkpoint: they communicate through files in its folder.

Each rank writes its shard into the same hidden folder, then a note of what is in it (`part-00001.json`), or of why
there is none (`failed-00001.txt`). Rank 0 waits for all notes and makes the manifest of them. The other ranks wait
until the folder has been renamed. No collective is used: this runs in a thread beside the training, whose collectives
it would mix with.
"""

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from qkv.errors import QkvError
from qkv.files import sync_folder
from qkv.train.checkpoint.files import MANIFEST, read_sealed, remove_folder, shard_name, write_sealed
from qkv.train.checkpoint.slices import tiling_problem

ShardInfo = dict[str, Any]
"""What the manifest says of one shard; `write_shard` returns it."""


class ShardCoordinator:
    """The shards in `folder`, seen from rank `rank`, which waits at most `timeout_seconds` for the others."""

    def __init__(self, folder: Path, rank: int, world_size: int, timeout_seconds: float) -> None:
        self.folder = folder
        self.rank, self.world_size, self.timeout_seconds = rank, world_size, timeout_seconds

    def publish(self, shard: ShardInfo) -> None:
        """Tell rank 0 that this rank's shard is on disk."""
        write_sealed(self._note_path(self.rank), shard)
        sync_folder(self.folder)

    def collect(self, own: ShardInfo) -> list[ShardInfo]:
        """On rank 0: wait for the shards of all other ranks; returns all of them, `own` first."""
        waiting = set(range(1, self.world_size))
        for _ in self._poll():
            names = set(os.listdir(self.folder))
            for rank in sorted(waiting):
                if self._failure_path(rank).name in names:
                    reason = self._failure_path(rank).read_text(encoding="utf-8")
                    raise QkvError(f"rank {rank} could not write its shard of a checkpoint: {reason}")
            waiting = {rank for rank in waiting if self._note_path(rank).name not in names}
            if not waiting:
                break
        else:
            raise QkvError(
                f"{self.folder}: the shard of rank {min(waiting)} did not arrive within {self.timeout_seconds:.0f} s; "
                "all ranks must see the same run folder: put it on a disk that their machines share"
            )
        shards = [own, *(read_sealed(self._note_path(rank)) for rank in range(1, self.world_size))]
        for shard in shards:
            path = self.folder / shard["file"]
            if not path.exists() or path.stat().st_size != shard["bytes"]:
                raise QkvError(f"{path}: not what rank {shard['rank']} wrote; is another job using this folder?")
        check_tiling(shards)
        return shards

    def remove_notes(self) -> None:
        """Delete the notes, whose content is in the manifest now."""
        for rank in range(1, self.world_size):
            self._note_path(rank).unlink()

    def wait_for_completion(self, destination: Path) -> None:
        """Wait until rank 0 has completed the checkpoint that this rank's shard is in.

        By then there may be a new folder of this name, for another attempt at the step, but our file is not in it.
        """
        own = self.folder / shard_name(self.rank, self.world_size)
        for _ in self._poll():
            if not own.exists():
                break
        else:
            raise QkvError(f"{self.folder}: rank 0 did not complete it within {self.timeout_seconds:.0f} s")
        if not (destination / MANIFEST).exists():
            raise QkvError(f"{destination}: rank 0 could not complete it; see its error message")

    def abort(self, reason: object) -> None:
        """Delete what this rank wrote, and tell rank 0 not to wait for it."""
        if self.rank == 0:
            remove_folder(self.folder)
            return
        for path in self.folder.glob(f"shard-{self.rank:05d}-*"):
            path.unlink(missing_ok=True)
        try:
            self._failure_path(self.rank).write_text(str(reason), encoding="utf-8")
        except OSError:
            return  # rank 0 notices when its time is up

    def _poll(self) -> Iterator[None]:
        """Yield at growing intervals until the time is up."""
        end, pause = time.monotonic() + self.timeout_seconds, 0.005
        while time.monotonic() < end:
            yield
            time.sleep(pause)
            pause = min(2 * pause, 0.5)

    def _note_path(self, rank: int) -> Path:
        return self.folder / f"part-{rank:05d}.json"

    def _failure_path(self, rank: int) -> Path:
        return self.folder / f"failed-{rank:05d}.txt"


def check_tiling(shards: Sequence[Mapping[str, Any]]) -> None:
    """Raise if the ranks' slices do not make up whole tensors. That would be a bug, noticed too late on reading."""
    types: dict[str, Any] = {}
    bounds: dict[str, list[Any]] = {}
    for shard in shards:
        for entry in shard["slices"]:
            dtype_and_shape = entry["dtype"], entry["shape"]
            if types.setdefault(entry["name"], dtype_and_shape) != dtype_and_shape:
                raise ValueError(f"{entry['name']}: slices of different dtypes or shapes")
            bounds.setdefault(entry["name"], []).append((tuple(entry["offset"]), tuple(entry["size"])))
    for name, (_, shape) in types.items():
        problem = tiling_problem(shape, bounds[name])
        if problem:
            raise ValueError(f"{name}: {problem}")
