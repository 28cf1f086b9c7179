"""Hashes of the user's files. The same bytes give the same hash on every machine.

Hashing a terabyte takes half an hour, so a file's hash is stored with its path, size and modification time, and
reused until one of these changes, as `make` and `rsync` do. The hash of a file that changed less than two seconds ago
is not stored: the clock of the file system might not show a second change. `trust_mtime=False` hashes every file again.
"""

import hashlib
import json
import os
import time
from contextlib import suppress
from io import BufferedReader
from pathlib import Path
from typing import Any

from qkv.data.readers.decompress import open_data_file
from qkv.errors import QkvError
from qkv.files import read_json_object, write_atomically

CLOCK_RESOLUTION_NS = 2_000_000_000  # the coarsest resolution of modification times in common file systems


class FileHashes:
    """Hashes of files, stored in one small JSON file."""

    def __init__(self, index_path: Path | None = None, trust_mtime: bool = True):
        self.index_path = index_path
        self.trust_mtime = trust_mtime
        self._known: dict[str, Any] = _load_index(index_path)
        # (size, mtime) of every file hashed so far, for `check_unchanged`
        self._stamps: dict[Path, tuple[int, int]] = {}

    def get(self, path: Path) -> str:
        """The hash of the file's bytes."""
        with open_data_file(path) as raw:
            stamp = _size_and_mtime(raw)
            name = str(path.resolve())
            known = self._known.get(name)
            if self.trust_mtime and isinstance(known, list) and known[:2] == list(stamp) and len(known) == 3:
                digest = str(known[2])
            else:
                digest = hashlib.file_digest(raw, lambda: hashlib.blake2b(digest_size=16)).hexdigest()
                _check_stamp(path, raw, stamp)
                if time.time_ns() - stamp[1] > CLOCK_RESOLUTION_NS:
                    self._save(name, [*stamp, digest])
        self._stamps[path] = stamp
        return digest

    def check_unchanged(self) -> None:
        """Raise if a file changed after it was hashed: the records may mix its old and its new content."""
        for path, stamp in self._stamps.items():
            with open_data_file(path) as raw:
                _check_stamp(path, raw, stamp)

    def _save(self, name: str, entry: list[Any]) -> None:
        self._known[name] = entry
        if self.index_path is None:
            return
        # The index only saves time. So it does not matter if two processes overwrite each other's entries, and a full
        # or read-only disk is not an error here; it is reported when the cache is written.
        with suppress(OSError):
            self.index_path.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(self.index_path, json.dumps({**_load_index(self.index_path), name: entry}, indent=0))


def _load_index(index_path: Path | None) -> dict[str, Any]:
    try:
        known = read_json_object(index_path) if index_path else {}
    except QkvError:
        return {}
    return known


def _size_and_mtime(raw: BufferedReader) -> tuple[int, int]:
    status = os.fstat(raw.fileno())
    return status.st_size, status.st_mtime_ns


def _check_stamp(path: Path, raw: BufferedReader, stamp: tuple[int, int]) -> None:
    if _size_and_mtime(raw) != stamp:
        raise QkvError(
            f"{path} changed while it was read, so the records may be incomplete; wait until no program writes to it, "
            "and start again"
        )
