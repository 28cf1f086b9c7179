"""A run folder: the files of a run and, when it has finished, its model.

    recipe.toml       the recipe, with every key
    env.json          versions, device, threads
    metrics.jsonl     the log, one JSON object per line
    checkpoints/
    .lock             locked while a job trains here; .lock.json describes the last job
    config.json, …    the model, once the run has finished

So the folder of a finished run is also a model folder.
"""

import json
import math
import os
import platform
import shlex
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, BinaryIO

import torch
from filelock import FileLock, Timeout

from qkv.errors import QkvError
from qkv.files import (
    PARTIAL,
    describe_os_error,
    parse_json,
    read_bytes,
    read_json_object,
    read_text,
    report_write_errors,
    to_path,
    write_atomically,
)
from qkv.store.model_folder import MODEL_FILES
from qkv.train.checkpoint.folder import CheckpointFolder

RECIPE = "recipe.toml"
ENV = "env.json"
METRICS = "metrics.jsonl"
CHECKPOINTS = "checkpoints"
LOCK = ".lock"
LOCK_HOLDER = ".lock.json"
MODEL_CONFIG = "config.json"
TOKENIZER = "tokenizer.json"
MAX_LOG_BYTES = 2**32


class RunFolder:
    """A run folder. Hold its `lock()` to write into it; reading needs no lock.

    >>> with RunFolder("runs/a").lock() as folder:
    ...     folder.write_recipe(text)
    ...     folder.append_log({"kind": "step", "step": 10, "loss": 2.5})
    """

    def __init__(self, path: str | Path, *, max_to_keep: int = 3, rank: int = 0, world_size: int = 1) -> None:
        self.path = to_path(path)
        self.checkpoints = CheckpointFolder(
            self.path / CHECKPOINTS, max_to_keep=max_to_keep, rank=rank, world_size=world_size
        )
        self.notes: list[str] = []  # messages about repaired files
        self._metrics: BinaryIO | None = None

    @property
    def is_run(self) -> bool:
        """Whether this is the folder of a run. A recipe alone is not enough, since a user may have put it there."""
        traces = (LOCK_HOLDER, ENV, METRICS, CHECKPOINTS)
        return (self.path / RECIPE).is_file() and any((self.path / name).exists() for name in traces)

    @property
    def has_model(self) -> bool:
        """Whether the run has finished at least once."""
        return (self.path / MODEL_CONFIG).exists()

    @property
    def has_progress(self) -> bool:
        """Whether the run has a checkpoint, a model, or a step in its log.

        A run without progress (it may have failed before the first step) may be started again with another recipe.
        """
        if not self.is_run:
            return False
        if any(self.path.glob(f"{CHECKPOINTS}/step-*")) or self.has_model:
            return True
        return any(record.get("kind") == "step" for record in self.log_records())

    @contextmanager
    def lock(self) -> Iterator["RunFolder"]:
        """Create the folder if needed, and lock it. If another job holds the lock, raise an error that names it.

        If the recipe cannot be trained (a `QkvError` before the log begins), the created files are deleted. After other
        errors and stop signals, the run can be started from its folder.
        """
        self._check_is_run_or_empty()
        files_before = set(self.path.glob("*"))
        new_folders = [folder for folder in (self.path, *self.path.parents) if not folder.exists()]
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            lock = FileLock(self.path / LOCK)
            lock.acquire(blocking=False)
        except Timeout:
            raise QkvError(
                f"{self.path}: another job is training here ({self._describe_holder()}); wait for it, stop it, or use "
                "another folder with run=…"
            ) from None
        except (OSError, NotImplementedError) as error:
            raise QkvError(
                f"{self.path}: cannot be used as a run folder ({describe_os_error(error)}); choose another with run=…"
            ) from error
        try:
            started = time.strftime("%Y-%m-%d %H:%M:%S %z")
            holder = {"pid": os.getpid(), "host": socket.gethostname(), "since": started}
            self._write(LOCK_HOLDER, json.dumps(holder) + "\n")
            with report_write_errors(self.path / METRICS):
                self._repair_log()
            with report_write_errors(self.checkpoints.folder):
                self.checkpoints.recover()
            yield self
        except QkvError:
            if not self._has_begun:
                self._delete_new(files_before, new_folders)
            raise
        finally:
            self._close()
            lock.release()

    # ------------------------------------------------------------------ recipe and environment

    def read_recipe(self) -> str:
        """Return the text of the run's recipe."""
        return read_text(self.path / RECIPE)

    def write_recipe(self, text: str) -> None:
        """Write the run's recipe."""
        self._write(RECIPE, text)

    def write_initial_recipe(self, recipe: str) -> None:
        """If the run has no progress, write its recipe, and delete the files of an earlier attempt."""
        if self.has_progress:
            return
        with report_write_errors(self.path):
            for name in (ENV, METRICS, TOKENIZER):
                (self.path / name).unlink(missing_ok=True)
        self.write_recipe(recipe)

    def write_env(self, device: str, num_threads: int) -> list[str]:
        """Write env.json. Return the changes since the last time, such as "torch: 2.11.0 → 2.13.0"."""
        env = environment(device, num_threads)
        try:
            before = read_json_object(self.path / ENV)
        except QkvError:
            before = {}
        self._write(ENV, json.dumps(env, indent=2) + "\n")
        return [f"{key}: {before[key]} → {env[key]}" for key in env if key in before and before[key] != env[key]]

    # ------------------------------------------------------------------ metrics

    def append_log(self, record: dict[str, Any]) -> None:
        """Append a line to metrics.jsonl. When this returns, the line is visible to readers, and survives a kill.

        Numbers are written exactly. NaN and infinities become null, because JSON does not have them.
        """
        finite = {k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in record.items()}
        line = json.dumps(finite, ensure_ascii=False, allow_nan=False) + "\n"
        with report_write_errors(self.path / METRICS):
            if self._metrics is None:
                self._metrics = (self.path / METRICS).open("ab")
            self._metrics.write(line.encode())
            self._metrics.flush()

    def sync_log(self) -> None:
        """Flush the log to disk, so that a power cut does not lose it."""
        if self._metrics is not None:
            with report_write_errors(self.path / METRICS):
                os.fsync(self._metrics.fileno())

    def _close(self) -> None:
        """Close the log, and ignore errors: `append_log` has already raised them."""
        if self._metrics is not None:
            with suppress(OSError):
                self._metrics.close()
            self._metrics = None

    def log_records(self) -> list[dict[str, Any]]:
        """Return all records of the log."""
        return [record for _, record in self._log_lines()]

    def truncate_log(self, step: int) -> None:
        """Delete the records of steps after `step`, because the run trains these steps again."""
        lines = self._log_lines()
        kept = [line for line, record in lines if record.get("step", 0) <= step]
        if len(kept) == len(lines):
            return
        self._close()
        self._write(METRICS, b"".join(kept).decode())

    def _log_lines(self) -> list[tuple[bytes, dict[str, Any]]]:
        """Return the lines of the log with their records, without unreadable lines."""
        path = self.path / METRICS
        lines = read_bytes(path, MAX_LOG_BYTES).splitlines(keepends=True) if path.exists() else []
        return [(line, record) for line in lines if (record := _parse_record(line)) is not None]

    def _repair_log(self) -> None:
        """Remove an incomplete end of the log (half a line, or NUL bytes) after a kill or a power cut."""
        path = self.path / METRICS
        if not path.exists():
            return
        data = read_bytes(path, MAX_LOG_BYTES)
        lines = data.split(b"\n")
        torn = len(lines.pop())  # the text after the last newline
        while lines and _parse_record(lines[-1] + b"\n") is None:
            torn += len(lines.pop()) + 1
        if torn:
            with path.open("rb+") as file:
                file.truncate(len(data) - torn)
            self.notes.append(f"{path}: the last line was incomplete; {torn} bytes were removed")

    # ------------------------------------------------------------------ the folder itself

    @property
    def _has_begun(self) -> bool:
        return any((self.path / name).exists() for name in (METRICS, CHECKPOINTS, MODEL_CONFIG))

    def _delete_new(self, files_before: set[Path], new_folders: list[Path]) -> None:
        """Delete the run's files that did not exist before, and new folders, if nothing else is in them.

        Without the run's files, a folder with other files would no longer be accepted as a run folder.
        """
        own = {path for one in (RECIPE, ENV, *MODEL_FILES, LOCK_HOLDER, LOCK) for path in self.path.glob(one)}
        if set(self.path.glob("*")) - own - files_before:
            return
        for path in own - files_before:
            with suppress(OSError):
                path.unlink()
        for folder in new_folders:
            with suppress(OSError):
                folder.rmdir()

    def _check_is_run_or_empty(self) -> None:
        """Raise if the folder has files that do not belong to a run, so that training never mixes its files with
        others.
        """
        if self.path.exists() and not self.path.is_dir():
            raise QkvError(f"{self.path}: this is a file; choose a folder with run=…")
        if not self.path.is_dir() or self.is_run:
            return
        own = {LOCK, LOCK_HOLDER, LOCK_HOLDER + PARTIAL, RECIPE + PARTIAL}
        others = sorted(path.name for path in self.path.iterdir() if path.name not in own)
        if "config.json" in others:
            raise QkvError(
                f"{self.path}: this folder has a model but no run; to train from it, choose another folder with run=… "
                f'and set model.from="{self.path}"'
            )
        if others:
            names = ", ".join(others[:3]) + (" …" if len(others) > 3 else "")
            raise QkvError(f"{self.path}: not a run folder, and not empty ({names}); choose another with run=…")

    def _describe_holder(self) -> str:
        try:
            holder = read_json_object(self.path / LOCK_HOLDER)
            return f"process {holder['pid']} on {holder['host']}, since {holder['since']}"
        except (QkvError, KeyError):
            return "an unknown process"

    def _write(self, name: str, text: str) -> None:
        with report_write_errors(self.path / name):
            write_atomically(self.path / name, text)


def resume_command(run: str | Path, processes: int = 1) -> str:
    """Return the command that resumes a run with this number of processes."""
    return f"qkv train {shlex.quote(str(run))}" + (f" --processes {processes}" if processes > 1 else "")


def environment(device: str, num_threads: int) -> dict[str, Any]:
    """Return what results may depend on besides the recipe. It does not identify a person or a place."""
    return {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "qkv": _version("qkv"),
        "safetensors": _version("safetensors"),
        "tokenizers": _version("tokenizers"),
        "device": device,
        "cuda": torch.version.cuda,
        "threads": num_threads,
        "system": platform.system(),
        "release": platform.release(),
        "machine": platform.machine(),
    }


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "unknown"


def _parse_record(line: bytes) -> dict[str, Any] | None:
    if not line.endswith(b"\n"):
        return None
    try:
        record = parse_json(line)
    except ValueError:
        return None
    return record if isinstance(record, dict) else None
