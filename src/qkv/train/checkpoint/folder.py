"""The checkpoints of a run: saved in the background, atomically, and verified before they are used.

`save` copies the tensors (`Snapshot`) and returns. A thread then writes the files. Every rank writes its slices into a
hidden folder. Rank 0 waits until all shards are there, writes the manifest and renames the folder. The renamed folder
is a complete checkpoint. Only then are older checkpoints deleted.
"""

import json
import os
import shutil
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from qkv.errors import QkvError, UsageError
from qkv.files import describe_os_error, hidden_sibling, partial_path, replace_folder, sync_folder
from qkv.train.checkpoint.coordination import ShardCoordinator, ShardInfo
from qkv.train.checkpoint.files import (
    BEST_FILE,
    MANIFEST_FILE,
    VERSION,
    DamagedCheckpoint,
    OtherFormatVersion,
    parse_step,
    raise_as_damaged,
    read_checksummed,
    remove_folder,
    step_folder_name,
    write_checksummed,
)
from qkv.train.checkpoint.reader import Checkpoint
from qkv.train.checkpoint.slices import TensorSlice
from qkv.train.checkpoint.writer import Snapshot, write_shard

SAVE_PHASES = ("begin", "half", "shard", "part", "manifest", "aside", "rename", "renamed", "best", "leaving", "done")
"""The phases of a save, in order. `on_phase(name)` is called at each of these points; tests use it to kill a run
there.

"part": write the part file. "aside": move away an old checkpoint of the same step, if there is one. "leaving": delete
older checkpoints.
"""


class CheckpointFolder:
    """The checkpoints of one run: the newest `max_to_keep` and the best one.

    `world_size` ranks save together; each saves its own slices. Rank 0 must call `recover()` before any rank saves.

    >>> checkpoints = CheckpointFolder("runs/a/checkpoints", max_to_keep=3)
    >>> checkpoints.save(100, {"weight": [TensorSlice.whole(weight)]}, {"epoch": 1})
    >>> checkpoints.wait_for_save()
    >>> checkpoints.newest().read_tensor("weight")
    """

    def __init__(
        self,
        folder: str | Path,
        *,
        max_to_keep: int,
        rank: int = 0,
        world_size: int = 1,
        timeout_seconds: float = 900.0,
        on_phase: Callable[[str], None] | None = None,
    ) -> None:
        if max_to_keep < 1:
            raise UsageError(f"train.keep_checkpoints = {max_to_keep} must be at least 1")
        self.folder = Path(folder)
        self.max_to_keep = max_to_keep
        self.rank, self.world_size = rank, world_size
        self.timeout_seconds = timeout_seconds  # the longest time that a rank waits for the others
        self.skipped: list[str] = []  # messages: why the last `newest()` skipped a checkpoint
        self._phase = on_phase or (lambda name: None)
        self._snapshot = Snapshot()
        self._writer: threading.Thread | None = None
        self._error: BaseException | None = None
        self._lock = threading.Lock()  # guards `_writing` and `_is_best`
        self._writing: int | None = None  # the step that is being written
        self._is_best = False  # whether the step that is being written is the best
        self._damaged: set[int] = set()
        self._recovered = False
        # The step of the last `save()` (perhaps still being written), or of the checkpoint that `newest()` returned.
        self.last_step: int | None = None
        self.temporary_step: int | None = None  # the step of the newest checkpoint, if it is temporary
        self._old_temporary_step: int | None = None  # the previous one; the save in progress deletes it

    # ------------------------------------------------------------------ saving

    def save(
        self,
        step: int,
        tensors: Mapping[str, Sequence[TensorSlice]],
        state: dict[str, Any],
        *,
        wait: bool = False,
        best: bool = False,
        temporary: bool = False,
    ) -> None:
        """Save `tensors`, and the `state` of rank 0 (JSON values), as the checkpoint of `step`.

        Return as soon as everything is copied, unless `wait` is set. If writing fails, the next `save` or
        `wait_for_save` raises the error. An existing checkpoint of this step is replaced. Checkpoints of later steps
        are deleted once this one is complete, because the run trains these steps again.

        A `temporary` checkpoint does not count towards `max_to_keep`, and the next save deletes it. For example, the
        checkpoint of a run that was stopped by a signal is temporary.
        """
        self.wait_for_save()
        if self.rank == 0 and not self._recovered:
            self.recover(keep_step=step if self.world_size > 1 else None)
        text = json.dumps(state)  # convert it now, because the caller may change it afterwards
        self._snapshot.take(tensors)
        self.last_step = step
        with self._lock:
            self._writing, self._is_best = step, best
            self._old_temporary_step, self.temporary_step = self.temporary_step, step if temporary else None
        self._writer = threading.Thread(target=self._run, args=(step, text), name=f"checkpoint {step}", daemon=True)
        self._writer.start()
        if wait:
            self.wait_for_save()

    def wait_for_save(self) -> None:
        """Wait for the save in progress, if any. Raise its error if it failed."""
        if self._writer is not None:
            self._writer.join()
            self._writer = None
        error, self._error = self._error, None
        if error is not None:
            raise error

    def mark_best(self, step: int) -> None:
        """Mark the checkpoint of `step` as the best, so that it is kept. A save in progress marks it at its end."""
        if self.rank != 0:
            return
        with self._lock:
            if self._writing == step:
                self._is_best = True
            elif step in self.steps():
                self._write_best(step)
            else:
                raise ValueError(f"there is no checkpoint of step {step} to mark as the best")

    def recover(self, keep_step: int | None = None) -> None:
        """Clean up after a killed run: delete incomplete checkpoints, and undo or complete an interrupted replacement.

        Call this before reading or saving. The job must hold the run's lock, because a checkpoint that another job is
        writing looks like an incomplete one.
        """
        self._recovered = True
        if self.rank != 0 or not self.folder.is_dir():
            return
        for replaced in self.folder.glob(".step-*.replaced"):
            original = self.folder / replaced.stem.removeprefix(".")
            if original.exists():
                shutil.rmtree(replaced, ignore_errors=True)
            else:
                replaced.rename(original)
        for suffix in ("writing", "leaving"):
            for left in self.folder.glob(f".step-*.{suffix}"):
                if keep_step is None or left != hidden_sibling(self.folder / step_folder_name(keep_step), "writing"):
                    shutil.rmtree(left, ignore_errors=True)
        partial_path(self.folder / BEST_FILE).unlink(missing_ok=True)

    # ------------------------------------------------------------------ reading

    def steps(self) -> list[int]:
        """Return the steps of all complete checkpoints. They are not verified."""
        return [
            step
            for step in self._folder_steps()
            if os.path.exists(self.folder / step_folder_name(step) / MANIFEST_FILE)
        ]

    def open_step(self, step: int) -> Checkpoint:
        """Open the checkpoint of a step. Each tensor is verified when it is read; `verify()` verifies all of them."""
        return Checkpoint(self.folder / step_folder_name(step))

    def newest(self) -> Checkpoint | None:
        """Return the newest checkpoint that is complete and undamaged; None if there is none.

        The attribute `skipped` explains why newer checkpoints were not used.
        """
        self.skipped = []
        for step in reversed(self._folder_steps()):
            try:
                checkpoint = self.open_step(step)
                checkpoint.verify()
            except DamagedCheckpoint as error:
                self.skipped.append(str(error))
                self._damaged.add(step)
                continue
            self.last_step = step
            return checkpoint
        return None

    def best(self) -> Checkpoint | None:
        """Return the verified checkpoint that was marked as the best; None if none was marked."""
        step = self._best_step()
        if step is None:
            return None
        checkpoint = self.open_step(step)
        checkpoint.verify()
        return checkpoint

    def _folder_steps(self) -> list[int]:
        if not self.folder.is_dir():
            return []
        try:
            names = os.listdir(self.folder)
        except OSError as error:
            raise QkvError(
                f"{self.folder}: cannot be read ({describe_os_error(error)}); check its permissions"
            ) from None
        return sorted(step for name in names if (step := parse_step(name)) is not None)

    def _best_step(self) -> int | None:
        path = self.folder / BEST_FILE
        if not path.exists():
            return None
        with raise_as_damaged(path):
            return int(read_checksummed(path)["step"])

    def _write_best(self, step: int) -> None:
        write_checksummed(self.folder / BEST_FILE, {"version": VERSION, "step": step})
        sync_folder(self.folder)

    # ------------------------------------------------------------------ in the writing thread

    def _run(self, step: int, state: str) -> None:
        try:
            self._write(step, state)
        except BaseException as error:
            self._error = error
        finally:
            with self._lock:
                self._writing = None

    def _write(self, step: int, state: str) -> None:
        destination = self.folder / step_folder_name(step)
        writing = hidden_sibling(destination, "writing")
        shards = ShardCoordinator(writing, self.rank, self.world_size, self.timeout_seconds)
        try:
            self._phase("begin")
            writing.mkdir(parents=True, exist_ok=True)
            self._snapshot.wait()
            own = write_shard(writing, self.rank, self.world_size, self._snapshot, self._phase)
            self._phase("part")
            if self.rank == 0:
                self._complete(step, state, destination, shards, own)
            else:
                shards.publish(own)
                shards.wait_for_completion(destination)
        except BaseException as error:
            shards.abort(error)
            if isinstance(error, OSError):
                raise self._disk_error(step, error) from error
            raise

    def _complete(self, step: int, state: str, destination: Path, shards: ShardCoordinator, own: ShardInfo) -> None:
        """On rank 0: write the manifest, rename the folder, and delete old checkpoints."""
        collected = shards.collect(own)
        self._phase("manifest")
        manifest = {
            "version": VERSION,
            "step": step,
            "world_size": self.world_size,
            "state": json.loads(state),
            "shards": collected,
        }
        write_checksummed(shards.folder / MANIFEST_FILE, manifest)
        shards.remove_part_files()
        replaced = replace_folder(shards.folder, destination, self._phase)
        sync_folder(self.folder.parent)  # the first save creates self.folder
        self._damaged.discard(step)
        self._phase("best")
        with self._lock:
            self._writing = None
            if self._is_best:
                self._write_best(step)
        shutil.rmtree(replaced, ignore_errors=True)
        self._phase("leaving")
        self.prune(step, include_invalid=True)
        self._phase("done")

    def prune(self, newest: int, *, include_invalid: bool = False) -> None:
        """Delete old checkpoints. Keep `newest`, the best, and the last `max_to_keep` that are not temporary.

        With `include_invalid`, also delete damaged checkpoints and checkpoints of later steps. This is safe only after
        a save.
        """
        if self.rank != 0:
            return
        with self._lock:
            valid = [step for step in self._folder_steps() if step <= newest and step not in self._damaged]
            try:
                best = self._best_step()
            except (DamagedCheckpoint, OtherFormatVersion):
                return  # best.json is damaged: delete nothing, since any checkpoint may be the best
            if include_invalid and best is not None and best > newest:
                (self.folder / BEST_FILE).unlink()
            counted = [step for step in valid if step not in (self._old_temporary_step, self.temporary_step)]
            stay = {newest, *counted[-self.max_to_keep :], best if best in valid else newest}
            for step in set(self._folder_steps() if include_invalid else valid) - stay:
                remove_folder(self.folder / step_folder_name(step))

    def _disk_error(self, step: int, error: OSError) -> QkvError:
        """Make the error for a full or failing disk."""
        try:
            free = f"{_format_bytes(shutil.disk_usage(self.folder).free)} are free"
        except OSError:
            free = "the free space is unknown"
        return QkvError(
            f"{self.folder}: the checkpoint of step {step} could not be written ({describe_os_error(error)}). It needs "
            f"{_format_bytes(self._snapshot.num_bytes)} and {free}. Older checkpoints are intact: free some space, or "
            "lower train.keep_checkpoints, and start the run again"
        )


def _format_bytes(count: float) -> str:
    for unit in ("bytes", "kB", "MB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "bytes" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} GB"
