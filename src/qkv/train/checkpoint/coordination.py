"""The parts of a checkpoint that several processes save together, and how they tell each other through the disk.

Each process writes its shard into the same hidden folder, then a note of what is in it (`part-00001.json`), or of why
there is none (`failed-00001.txt`). The first process waits for all the notes and makes the manifest of them; the others
wait until the folder has got its name. No collective is used: this runs in a thread beside the training, whose own
collectives it would get into the way of.
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

ShardInfo = dict[str, Any]  # what `write_shard` says of a shard


class ShardCoordinator:
    """The parts in the folder `writing`, as process `rank` of `ranks` sees them; it waits for `patience` seconds."""

    def __init__(self, folder: Path, rank: int, world_size: int, timeout_seconds: float) -> None:
        self.folder = folder
        self.rank, self.world_size, self.timeout_seconds = rank, world_size, timeout_seconds

    def publish(self, part: ShardInfo) -> None:
        """Tell the first process that this one's part is on the disk."""
        write_sealed(self._note_path(self.rank), part)
        sync_folder(self.folder)

    def collect(self, own: ShardInfo) -> list[ShardInfo]:
        """Wait until every other process's part is on the disk; what all of them hold, `first` being our own."""
        waiting = set(range(1, self.world_size))
        for _ in self._poll():
            names = set(os.listdir(self.folder))
            for rank in sorted(waiting):
                if self._failure_path(rank).name in names:
                    reason = self._failure_path(rank).read_text(encoding="utf-8")
                    raise QkvError(f"process {rank} could not write its part of a checkpoint: {reason}")
            waiting = {rank for rank in waiting if self._note_path(rank).name not in names}
            if not waiting:
                break
        else:
            raise QkvError(
                f"{self.folder}: the part of process {min(waiting)} did not come in {self.timeout_seconds:.0f} s; all "
                "processes must see the same run folder, on a disk that their machines share"
            )
        parts = [own, *(read_sealed(self._note_path(rank)) for rank in range(1, self.world_size))]
        for part in parts:
            path = self.folder / part["file"]
            if not path.exists() or path.stat().st_size != part["bytes"]:
                raise QkvError(f"{path}: not what process {part['rank']} wrote; is another job using this folder?")
        check_tiling(parts)
        return parts

    def remove_notes(self) -> None:
        """The notes go when the manifest holds what was in them."""
        for rank in range(1, self.world_size):
            self._note_path(rank).unlink()

    def wait_for_completion(self, destination: Path) -> None:
        """Wait until the first process has completed the checkpoint that this one's part is in.

        The folder may be there again by then, for the same step anew; our file in it is not.
        """
        ours = self.folder / shard_name(self.rank, self.world_size)
        for _ in self._poll():
            if not ours.exists():
                break
        else:
            raise QkvError(f"{self.folder}: the first process did not complete it in {self.timeout_seconds:.0f} s")
        if not (destination / MANIFEST).exists():
            raise QkvError(f"{destination}: the first process gave it up")

    def abort(self, reason: object) -> None:
        """Leave nothing of this attempt behind, and tell the first process that it need not wait."""
        if self.rank == 0:
            remove_folder(self.folder)
            return
        for path in self.folder.glob(f"shard-{self.rank:05d}-*"):
            path.unlink(missing_ok=True)
        try:
            self._failure_path(self.rank).write_text(str(reason), encoding="utf-8")
        except OSError:
            return  # it will find out by waiting

    def _poll(self) -> Iterator[None]:
        """Come back every now and then, more and more seldom, until patience ends."""
        end, pause = time.monotonic() + self.timeout_seconds, 0.005
        while time.monotonic() < end:
            yield
            time.sleep(pause)
            pause = min(2 * pause, 0.5)

    def _note_path(self, rank: int) -> Path:
        return self.folder / f"part-{rank:05d}.json"

    def _failure_path(self, rank: int) -> Path:
        return self.folder / f"failed-{rank:05d}.txt"


def check_tiling(parts: Sequence[Mapping[str, Any]]) -> None:
    """Whether the processes' pieces together are whole tensors: a mistake of ours that would be found too late."""
    kinds: dict[str, Any] = {}
    boxes: dict[str, list[Any]] = {}
    for part in parts:
        for piece in part["pieces"]:
            kind = piece["dtype"], piece["shape"]
            if kinds.setdefault(piece["name"], kind) != kind:
                raise ValueError(f"{piece['name']}: pieces of different types or shapes")
            boxes.setdefault(piece["name"], []).append((tuple(piece["offset"]), tuple(piece["size"])))
    for name, (_, shape) in kinds.items():
        problem = tiling_problem(shape, boxes[name])
        if problem:
            raise ValueError(f"{name}: {problem}")
