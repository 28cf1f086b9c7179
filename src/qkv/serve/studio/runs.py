"""Training runs on this machine: the runs in some folders, the new lines of their logs, and the studies of runs.

A request names a run by an id that the server made. So no path of a request reaches the file system.
"""

import hashlib
import os
import socket
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from qkv.errors import QkvError, UsageError
from qkv.files import parse_json, read_json_object
from qkv.render.study import study_table, verdict_lines
from qkv.tasks.study import is_study, open_study, read_study
from qkv.train.run.folder import LOCK_HOLDER, METRICS, RunFolder

MAX_RUNS = 100
MAX_DEPTH = 2
"""Runs are found in the given folders, in their subfolders, and in the subfolders of these."""
MAX_FOLDERS = 2000
MAX_READ_BYTES = 1_000_000
MAX_LINE_BYTES = 20_000
"""A longer line of a log is not shown."""


class Runs:
    """The runs below some folders."""

    def __init__(self, roots: Iterable[Path]) -> None:
        self.roots = [root.absolute() for root in roots]
        self._folders: dict[str, Path] = {}

    def list(self) -> list[dict[str, Any]]:
        """All runs, the last changed one first."""
        found = sorted(self._find(), key=lambda folder: -modified(folder / METRICS))[:MAX_RUNS]
        self._folders = {hashlib.sha256(str(folder).encode()).hexdigest()[:16]: folder for folder in found}
        return [
            {
                "id": name,
                "name": self._name(folder),
                "state": find_state(folder),
                "changed": modified(folder / METRICS),
                "study": self._name(folder.parent) if is_study(folder.parent) else None,
            }
            for name, folder in self._folders.items()
        ]

    def read(self, run: str, cursor: str) -> dict[str, Any]:
        """The records of a log after a cursor, at most a megabyte. `reset` says that the log was written again."""
        folder = self._find_run(run)
        return {**read_log(folder / METRICS, cursor), "state": find_state(folder)}

    def read_study(self, run: str) -> dict[str, Any]:
        """The study of a run: the variant of each run by its id, the table, and what it shows."""
        folder = self._find_run(run).parent
        if not is_study(folder):
            raise UsageError(f"the run {run[:80]!r} does not belong to a study; choose a run that belongs to one")
        study = open_study(folder, imports_plugins=False)
        variants = {cell.name: cell.variant for cell in study.cells()}
        result = read_study(study)
        return {
            "variants": {
                name: variants[one.name]
                for name, one in self._folders.items()
                if one.parent == folder and one.name in variants
            },
            "table": study_table(result),
            "notes": [*verdict_lines(result), *result.notes],
        }

    def _find_run(self, run: str) -> Path:
        if run not in self._folders:
            self.list()
        if run not in self._folders:
            raise UsageError(f"there is no run {run[:80]!r}; it may have been deleted or moved: load the list again")
        return self._folders[run]

    def _name(self, folder: Path) -> str:
        root = next((root for root in self.roots if folder.is_relative_to(root)), folder.parent)
        return str(folder.relative_to(root if len(self.roots) == 1 else root.parent)) if folder != root else folder.name

    def _find(self) -> set[Path]:
        level, found, num_seen = list(self.roots), set[Path](), 0
        for _ in range(MAX_DEPTH + 1):
            below: list[Path] = []
            for folder in level:
                num_seen += 1
                if num_seen > MAX_FOLDERS:
                    return found
                if RunFolder(folder).is_run:
                    found.add(folder)
                else:
                    below += list_folders(folder)
            level = below
        return found


def list_folders(folder: Path) -> list[Path]:
    """The folders inside a folder, without hidden ones and links; none if it cannot be read."""
    try:
        entries = [entry for entry in os.scandir(folder) if entry.is_dir(follow_symlinks=False)]
    except OSError:
        return []
    return [Path(entry.path) for entry in entries if not entry.name.startswith(".")]


def modified(path: Path) -> float:
    """When a file was changed, in seconds since 1970; 0 if it does not exist."""
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0


def read_log(path: Path, cursor: str) -> dict[str, Any]:
    """The complete lines after a cursor, which is "INODE:OFFSET", or "" for the beginning."""
    try:
        with path.open("rb") as file:
            status = os.fstat(file.fileno())
            inode, _, text = cursor.partition(":")
            offset = int(text) if text.isdigit() and len(text) < 16 else 0
            is_same = inode == str(status.st_ino) and offset <= status.st_size
            file.seek(offset if is_same else 0)
            data = file.read(MAX_READ_BYTES)
            start = offset if is_same else 0
    except OSError:
        return {"records": [], "cursor": "", "reset": True, "more": False}
    length = data.rfind(b"\n") + 1
    if not length and len(data) == MAX_READ_BYTES:
        length = len(data)  # a line that is longer than a read is skipped
    lines = [line for line in data[:length].split(b"\n") if 0 < len(line) <= MAX_LINE_BYTES]
    records = [record for line in lines if (record := parse_line(line)) is not None]
    end = start + length
    cursor = f"{status.st_ino}:{end}"
    return {"records": records, "cursor": cursor, "reset": not is_same, "more": length > 0 and end < status.st_size}


def parse_line(line: bytes) -> dict[str, Any] | None:
    """A record of a log; None if the line is damaged."""
    try:
        record = parse_json(line)
    except ValueError:
        return None
    return record if isinstance(record, dict) and isinstance(record.get("kind"), str) else None


def find_state(folder: Path) -> str:
    """Whether a run is "training", has "finished", was "stopped" by a signal, or was "interrupted" without one."""
    last = next(read_last_records(folder / METRICS, MAX_LINE_BYTES), {})
    if last.get("kind") == "end":
        return "stopped" if last.get("reason") == "signal" else "finished"
    return "training" if is_training(folder) else "interrupted"


def read_last_records(path: Path, max_bytes: int) -> Iterator[dict[str, Any]]:
    """The records in the last bytes of a log, the last one first."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - max_bytes))
            lines = file.read(max_bytes).split(b"\n")
    except OSError:
        return
    yield from filter(None, map(parse_line, reversed(lines)))


def is_training(folder: Path) -> bool:
    """Whether the process that last locked the folder is alive. One on another machine counts as alive."""
    try:
        holder = read_json_object(folder / LOCK_HOLDER)
        if holder["host"] != socket.gethostname():
            return True
        os.kill(int(holder["pid"]), 0)
    except (QkvError, KeyError, TypeError, ValueError, OverflowError, ProcessLookupError):
        return False
    except PermissionError:
        return True
    return True


def read_examples(folder: Path, max_examples: int = 64) -> list[str]:
    """The sources of the samples in the log of a run, the latest first. They resemble the training texts."""
    records = read_last_records(folder / METRICS, MAX_READ_BYTES)
    texts = (record.get("source") for record in records if record["kind"] == "sample")
    return list(dict.fromkeys(text for text in texts if isinstance(text, str)))[:max_examples]
