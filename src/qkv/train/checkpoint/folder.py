"""Checkpoints: written beside the training, complete or not there at all, and never trusted unread.

A save copies what is to be kept (`Snapshot`) and goes back to training; a thread does the rest. Every process writes
its pieces into a hidden folder beside the checkpoint's place. The first process waits until all parts are there, writes
the manifest and gives the folder its name: from that moment on the checkpoint exists. Only then do older ones go.
"""

import json
import shutil
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from qkv.errors import QkvError, UsageError
from qkv.files import describe_os_error, hidden_sibling, replace_folder, sync_folder
from qkv.train.checkpoint.coordination import ShardCoordinator, ShardInfo
from qkv.train.checkpoint.files import (
    BEST,
    MANIFEST,
    VERSION,
    DamagedCheckpoint,
    parse_step,
    read_sealed,
    remove_folder,
    step_folder_name,
    write_sealed,
)
from qkv.train.checkpoint.reader import Checkpoint
from qkv.train.checkpoint.slices import TensorSlice
from qkv.train.checkpoint.writer import Snapshot, write_shard

SAVE_PHASES = ("begin", "half", "shard", "part", "manifest", "aside", "rename", "renamed", "best", "leaving", "done")
"""What `on_phase` is called with, in order: each is about to happen. "aside" is for a step that was there before."""


class CheckpointFolder:
    """The checkpoints of one run, the newest `keep` of them and the best.

    `rank` is this process's number among the `ranks` that save together, each its own pieces. Several processes must
    all have been through `recover()` (it does nothing but on rank 0) before any of them saves.

    >>> checkpoints = Checkpoints("runs/a/checkpoints", keep=3)
    >>> checkpoints.save(100, {"weight": [Piece.whole(weight)]}, {"epoch": 1})
    >>> checkpoints.finish()
    >>> checkpoints.newest().whole("weight")
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
            raise UsageError(f"train.keep_checkpoints = {max_to_keep}: at least one checkpoint must be kept")
        self.folder = Path(folder)
        self.max_to_keep = max_to_keep
        self.rank, self.world_size = rank, world_size
        self.timeout_seconds = timeout_seconds  # seconds that a process waits for the parts of the others
        self.skipped: list[str] = []  # what the last `newest()` could not use, and why
        self._phase = on_phase or (lambda name: None)
        self._snapshot = Snapshot()
        self._writer: threading.Thread | None = None
        self._error: BaseException | None = None
        self._lock = threading.Lock()  # for the two below
        self._writing: int | None = None  # the step whose write is not complete yet
        self._is_best = False  # whether that one is the best
        self._damaged: set[int] = set()
        self._recovered = False
        self._last_step: int | None = None
        self.temporary_step: int | None = None  # the step of the one that was taken in passing
        self._old_temporary_step: int | None = None  # the one before it

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
        """Keep `tensors` and `state` (plain JSON; the first process's is kept) as the checkpoint of `step`.

        One that is taken in `passing`, because the run stops here, costs no other its place and goes with the next.

        Returns as soon as everything is copied, unless `wait`. What went wrong in writing is raised by the next `save`
        or `finish`. A checkpoint that is there for this step is replaced; those of later steps belong to a past that is
        being trained anew, and go when this one is complete.
        """
        self.finish()
        if self.rank == 0 and not self._recovered:
            self.recover(keep_step=step if self.world_size > 1 else None)
        text = json.dumps(state)  # now: the caller goes on changing it
        self._snapshot.take(tensors)
        self._last_step = step
        with self._lock:
            self._writing, self._is_best = step, best
            self._old_temporary_step, self.temporary_step = self.temporary_step, step if temporary else None
        self._writer = threading.Thread(target=self._run, args=(step, text), name=f"checkpoint {step}", daemon=True)
        self._writer.start()
        if wait:
            self.finish()

    def finish(self) -> None:
        """Wait for the write that is under way, if there is one, and raise what went wrong in it."""
        if self._writer is not None:
            self._writer.join()
            self._writer = None
        error, self._error = self._error, None
        if error is not None:
            raise error

    def mark_best(self, step: int) -> None:
        """Let the checkpoint of `step` stay until another is better; if it is being written, once it is complete."""
        if self.rank != 0:
            return
        with self._lock:
            if self._writing == step:
                self._is_best = True
            elif step in self.steps():
                self._write_best(step)
            else:
                raise ValueError(f"there is no checkpoint of step {step} that could be the best")

    def recover(self, keep_step: int | None = None) -> None:
        """Clear what a killed run left behind, and finish a replacement that it did not get to finish.

        For the job that holds the run's lock, before anything is read or saved: to a reader, another's half-written
        checkpoint looks just like one that was left.
        """
        self._recovered = True
        if self.rank != 0 or not self.folder.is_dir():
            return
        for replaced in self.folder.glob(".step-*.replaced"):
            place = self.folder / replaced.stem.removeprefix(".")
            if place.exists():
                shutil.rmtree(replaced, ignore_errors=True)
            else:
                replaced.rename(place)
        for ending in ("writing", "leaving"):
            for left in self.folder.glob(f".step-*.{ending}"):
                if keep_step is None or left != hidden_sibling(self.folder / step_folder_name(keep_step), "writing"):
                    shutil.rmtree(left, ignore_errors=True)
        (self.folder / f"{BEST}.partial").unlink(missing_ok=True)

    # ------------------------------------------------------------------ reading

    def steps(self) -> list[int]:
        """The steps that there are complete checkpoints of, sound or not."""
        return [step for step in self._folder_steps() if (self.folder / step_folder_name(step) / MANIFEST).exists()]

    def newest_step(self) -> int | None:
        """The step saved last, complete or not yet, or the one that `newest()` found: the same in every process."""
        return self._last_step

    def open_step(self, step: int) -> Checkpoint:
        """The checkpoint of a step. What is read of it is checked then; `verify()` checks all of it."""
        return Checkpoint(self.folder / step_folder_name(step))

    def newest(self, required: Iterable[str] | None = None) -> Checkpoint | None:
        """The newest checkpoint that is complete, undamaged in every byte, and holds the tensors named in `need`.

        `passed_over`, of the checkpoint and of this, says which newer ones were not taken, and why.
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
            missing = sorted(set(required or ()) - set(checkpoint.tensor_names()))
            if missing:
                self.skipped.append(f"{checkpoint.folder}: {len(missing)} tensors are not in it, as {missing[0]}")
                continue
            checkpoint.skipped = list(self.skipped)
            self._last_step = step
            return checkpoint
        return None

    def best(self) -> Checkpoint | None:
        """The checkpoint that was marked best, checked in every byte; None where none was."""
        step = self._best_step()
        if step is None:
            return None
        checkpoint = self.open_step(step)
        checkpoint.verify()
        return checkpoint

    def _folder_steps(self) -> list[int]:
        if not self.folder.is_dir():
            return []
        return sorted(step for path in self.folder.iterdir() if (step := parse_step(path.name)) is not None)

    def _best_step(self) -> int | None:
        path = self.folder / BEST
        return read_sealed(path)["step"] if path.exists() else None

    def _write_best(self, step: int) -> None:
        write_sealed(self.folder / BEST, {"version": VERSION, "step": step})
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
        place = self.folder / step_folder_name(step)
        parts = ShardCoordinator(hidden_sibling(place, "writing"), self.rank, self.world_size, self.timeout_seconds)
        try:
            self._phase("begin")
            parts.folder.mkdir(parents=True, exist_ok=True)
            self._snapshot.wait()
            part = write_shard(parts.folder, self.rank, self.world_size, self._snapshot.slices, self._phase)
            self._phase("part")
            if self.rank == 0:
                self._complete(step, state, place, parts, part)
            else:
                parts.publish(part)
                parts.wait_for_completion(place)
        except BaseException as error:
            parts.abort(error)
            if isinstance(error, OSError):
                raise self._disk_error(step, error) from error
            raise

    def _complete(self, step: int, state: str, place: Path, parts: ShardCoordinator, first: ShardInfo) -> None:
        """The first process's share: the manifest, the name, and the end of what is no longer kept."""
        gathered = parts.collect(first)
        self._phase("manifest")
        manifest = {
            "version": VERSION,
            "step": step,
            "ranks": self.world_size,
            "state": json.loads(state),
            "parts": gathered,
        }
        write_sealed(parts.folder / MANIFEST, manifest)
        parts.remove_notes()
        replaced = replace_folder(parts.folder, place, self._phase)
        sync_folder(self.folder.parent)  # which did not know of it before the first checkpoint
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
        """Let older ones go: beside `newest`, `keep` lasting ones and the best stay.

        With `others`, the damaged ones and those of a past that is being trained anew go, too: once there is a new one.
        """
        if self.rank != 0:
            return
        with self._lock:
            there = [step for step in self._folder_steps() if step <= newest and step not in self._damaged]
            try:
                best = self._best_step()
            except DamagedCheckpoint:
                return  # which one is the best is not known until there is a better one
            if include_invalid and best is not None and best > newest:
                (self.folder / BEST).unlink()
            lasting = [step for step in there if step not in (self._old_temporary_step, self.temporary_step)]
            stay = {newest, *lasting[-self.max_to_keep :], best if best in there else newest}
            for step in set(self._folder_steps() if include_invalid else there) - stay:
                remove_folder(self.folder / step_folder_name(step))

    def _disk_error(self, step: int, error: OSError) -> QkvError:
        """What a full or failing disk means to the person at the other end."""
        need = self._snapshot.num_bytes
        try:
            free = f"{_format_bytes(shutil.disk_usage(self.folder).free)} are free there"
        except OSError:
            free = "how much is free there cannot be told"
        return QkvError(
            f"{self.folder}: the checkpoint of step {step} could not be written ({describe_os_error(error)}). It needs "
            f"{_format_bytes(need)} and {free}. Older checkpoints are whole: make room, or lower train.keep_checkpoints, and start again"
        )


def _format_bytes(count: float) -> str:
    for unit in ("bytes", "kB", "MB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "bytes" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} GB"
