"""What a file holds, as a hash: the same bytes give the same string, wherever and whenever.

Hashing a terabyte takes half an hour, so a hash is remembered beside the file's path, size and time of change, and
trusted while these three stay: what `make` and `rsync` do. A file that was changed less than two seconds before it
was hashed is not remembered, because a second change within the clock's step would go unseen. `trust=False` hashes
every file again.
"""

import hashlib
import json
import os
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from qkv.data.readers.decompress import open_file
from qkv.errors import QkvError

CLOCK_RESOLUTION_NS = 2_000_000_000  # nanoseconds: the coarsest clock of a usual file system


class FileHashes:
    """Hashes of files, remembered in one small JSON file.

    >>> FileHashes(Path("cache/contents.json")).get(Path("train.jsonl"))      # doctest: +SKIP
    """

    def __init__(self, index_path: Path | None = None, trust_mtime: bool = True):
        self.index_path = index_path
        self.trust_mtime = trust_mtime
        self._known: dict[str, Any] = _load_index(index_path)
        self._stamps: dict[Path, tuple[int, int]] = {}  # of every file hashed here, to see that it stays

    def get(self, path: Path, on_bytes: Callable[[int], None] | None = None) -> str:
        """The hash of the file's bytes."""
        with open_file(path) as raw:
            before = _size_and_mtime(os.fstat(raw.fileno()))
            name = str(path.resolve())
            known = self._known.get(name)
            if self.trust_mtime and isinstance(known, list) and known[:2] == list(before) and len(known) == 3:
                found = str(known[2])
            else:
                found = _hash_bytes(raw, on_bytes)
                if _size_and_mtime(os.fstat(raw.fileno())) != before:
                    raise QkvError(f"{path} changed while it was read; wait until it is complete and start again")
                if time.time_ns() - before[1] > CLOCK_RESOLUTION_NS:
                    self._save(name, [*before, found])
        self._stamps[path] = before
        return found

    def check_unchanged(self) -> None:
        """Raise if a file is not what it was when it was hashed: what was read meanwhile may be of both."""
        for path, stamp in self._stamps.items():
            with open_file(path) as raw:
                if _size_and_mtime(os.fstat(raw.fileno())) != stamp:
                    raise QkvError(f"{path} changed while it was read; wait until it is complete and start again")

    def _save(self, name: str, entry: list[Any]) -> None:
        self._known[name] = entry
        if self.index_path is None:
            return
        part = self.index_path.with_name(f"{self.index_path.name}.{os.getpid()}.part")
        try:  # another process may have remembered others meanwhile; what is lost is hashed again
            self.index_path.parent.mkdir(parents=True, exist_ok=True)
            part.write_text(json.dumps({**_load_index(self.index_path), name: entry}, indent=0))
            part.replace(self.index_path)
        except OSError:  # only a shortcut: a full or read-only disk shows itself where it matters
            with suppress(OSError):
                part.unlink(missing_ok=True)


def _load_index(index_path: Path | None) -> dict[str, Any]:
    try:
        known = json.loads(index_path.read_text()) if index_path else {}
    except (OSError, ValueError):
        return {}
    return known if isinstance(known, dict) else {}


def _size_and_mtime(status: os.stat_result) -> tuple[int, int]:
    return status.st_size, status.st_mtime_ns


def _hash_bytes(raw: Any, on_bytes: Callable[[int], None] | None) -> str:
    hashed = hashlib.blake2b(digest_size=16)
    while block := raw.read(2**20):
        hashed.update(block)
        if on_bytes:
            on_bytes(len(block))
    return hashed.hexdigest()
