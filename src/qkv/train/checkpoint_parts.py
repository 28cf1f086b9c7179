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

from qkv.data.cache_folder import sync_folder
from qkv.errors import QkvError
from qkv.train.checkpoint_files import MANIFEST, read_sealed, remove, shard_name, write_sealed
from qkv.train.pieces import tiling_problem

Part = dict[str, Any]  # what `write_shard` says of a shard


class Parts:
    """The parts in the folder `writing`, as process `rank` of `ranks` sees them; it waits for `patience` seconds."""

    def __init__(self, writing: Path, rank: int, ranks: int, patience: float) -> None:
        self.writing = writing
        self.rank, self.ranks, self.patience = rank, ranks, patience

    def hand_in(self, part: Part) -> None:
        """Tell the first process that this one's part is on the disk."""
        write_sealed(self._note(self.rank), part)
        sync_folder(self.writing)

    def gather(self, first: Part) -> list[Part]:
        """Wait until every other process's part is on the disk; what all of them hold, `first` being our own."""
        waiting = set(range(1, self.ranks))
        for _ in self._waiting():
            names = set(os.listdir(self.writing))
            for rank in sorted(waiting):
                if self._failure(rank).name in names:
                    reason = self._failure(rank).read_text(encoding="utf-8")
                    raise QkvError(f"process {rank} could not write its part of a checkpoint: {reason}")
            waiting = {rank for rank in waiting if self._note(rank).name not in names}
            if not waiting:
                break
        else:
            raise QkvError(
                f"{self.writing}: the part of process {min(waiting)} did not come in {self.patience:.0f} s; all "
                "processes must see the same run folder, on a disk that their machines share"
            )
        parts = [first, *(read_sealed(self._note(rank)) for rank in range(1, self.ranks))]
        for part in parts:
            path = self.writing / part["file"]
            if not path.exists() or path.stat().st_size != part["bytes"]:
                raise QkvError(f"{path}: not what process {part['rank']} wrote; is another job using this folder?")
        check_tiling(parts)
        return parts

    def clear_notes(self) -> None:
        """The notes go when the manifest holds what was in them."""
        for rank in range(1, self.ranks):
            self._note(rank).unlink()

    def await_completion(self, place: Path) -> None:
        """Wait until the first process has completed the checkpoint that this one's part is in.

        The folder may be there again by then, for the same step anew; our file in it is not.
        """
        ours = self.writing / shard_name(self.rank, self.ranks)
        for _ in self._waiting():
            if not ours.exists():
                break
        else:
            raise QkvError(f"{self.writing}: the first process did not complete it in {self.patience:.0f} s")
        if not (place / MANIFEST).exists():
            raise QkvError(f"{place}: the first process gave it up")

    def give_up(self, reason: object) -> None:
        """Leave nothing of this attempt behind, and tell the first process that it need not wait."""
        if self.rank == 0:
            remove(self.writing)
            return
        for path in self.writing.glob(f"shard-{self.rank:05d}-*"):
            path.unlink(missing_ok=True)
        try:
            self._failure(self.rank).write_text(str(reason), encoding="utf-8")
        except OSError:
            return  # it will find out by waiting

    def _waiting(self) -> Iterator[None]:
        """Come back every now and then, more and more seldom, until patience ends."""
        end, pause = time.monotonic() + self.patience, 0.005
        while time.monotonic() < end:
            yield
            time.sleep(pause)
            pause = min(2 * pause, 0.5)

    def _note(self, rank: int) -> Path:
        return self.writing / f"part-{rank:05d}.json"

    def _failure(self, rank: int) -> Path:
        return self.writing / f"failed-{rank:05d}.txt"


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
