"""A token cache's folder: its files, and how it is created completely or not at all.

    meta.json               counts, types, checksums, the problems found while building, and a checksum of itself
    <field>.tokens.bin      the tokens of all examples, concatenated: uint16 if they fit, else int32 (or float32)
    <field>.offsets.bin     int64, one more than there are examples: where each example begins
    <field>.lengths.bin     int32, one for each example
    location.files.bin      int32: the file that each example came from, as an index into meta.json's list
    location.lines.bin      int64: the line in that file

All numbers are little-endian. A cache is written to `.<name>.building` and renamed when it is complete and on disk.
The process that builds holds the lock `.<name>.lock`, which the system frees when the process dies. So a `.building`
folder whose lock is free is left over from a killed build, and may be deleted.
"""

import json
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import blake2b
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from qkv.errors import QkvError, UsageError
from qkv.files import describe_os_error, hidden_sibling, replace_folder, write_atomically

CACHE_VERSION = 2
META_FILE = "meta.json"
DISK_DTYPES = {"uint16": "<u2", "int32": "<i4", "int64": "<i8", "float32": "<f4"}  # name in meta.json → numpy's


class DamagedCache(QkvError):
    """A token cache whose files are not what was written. Building it again is always safe."""


def field_file(folder: Path, field: str, part: str) -> Path:
    """The path of one of a field's files. The field's name is part of it, so it may not contain special characters."""
    if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", field) or field == "location":
        raise UsageError(f"{field!r} cannot name an encoded field; use letters, digits and underscores")
    return folder / f"{field}.{part}.bin"


def location_file(folder: Path, part: str) -> Path:
    """The path of the examples' `files` or `lines`."""
    return folder / f"location.{part}.bin"


def write_meta(folder: Path, meta: dict[str, Any]) -> None:
    """Write `meta.json`; it is on disk when this returns."""
    text = json.dumps({"version": CACHE_VERSION, **meta}, sort_keys=True)
    content = json.dumps({"checksum": _checksum(text), "meta": json.loads(text)}, sort_keys=True, indent=1)
    write_atomically(folder / META_FILE, content)


def read_meta(folder: Path) -> dict[str, Any]:
    """What `write_meta` wrote; raises `DamagedCache`."""
    path = folder / META_FILE
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        meta: dict[str, Any] = content["meta"]
        if content["checksum"] != _checksum(json.dumps(meta, sort_keys=True)):
            raise DamagedCache(f"{path} does not match its own checksum")
        if meta["version"] != CACHE_VERSION:
            raise DamagedCache(f"{folder} has version {meta['version']} of the format; this is {CACHE_VERSION}")
    except FileNotFoundError:
        raise DamagedCache(f"{folder} is not a token cache: it has no {META_FILE}") from None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DamagedCache(f"{path} cannot be read: {error}") from None
    return meta


@contextmanager
def build_lock(folder: Path) -> Iterator[None]:
    """Hold the lock for building `folder`; wait while another process has it."""
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        lock = FileLock(hidden_sibling(folder, "lock"))
        lock.acquire()
    except (OSError, NotImplementedError) as error:
        raise QkvError(f"no token cache can be built in {folder.parent}: {describe_os_error(error)}") from error
    try:
        yield
    finally:
        lock.release()


@contextmanager
def building_folder(folder: Path) -> Iterator[Path]:
    """A temporary folder that replaces `folder` if the block succeeds, and is deleted if it fails.

    The caller holds the lock, and has flushed every file to disk (fsync) when the block ends.
    """
    if folder.exists() and not _is_token_cache(folder):
        raise UsageError(f"{folder} exists and is not a token cache; choose another folder")
    building, replaced = hidden_sibling(folder, "building"), hidden_sibling(folder, "replaced")
    try:
        shutil.rmtree(building, ignore_errors=True)
        shutil.rmtree(replaced, ignore_errors=True)
        building.mkdir()
        try:
            yield building
            replace_folder(building, folder)  # a process that has the old one open keeps its pages
        finally:
            shutil.rmtree(building, ignore_errors=True)
            shutil.rmtree(replaced, ignore_errors=True)
    except OSError as error:
        raise QkvError(f"the token cache {folder} could not be written: {describe_os_error(error)}") from error


def remove_stale_builds(root: Path) -> None:
    """Delete what killed builds left in `root`; caches that are being built now are locked, and stay."""
    for left_over in [*root.glob(".*.building"), *root.glob(".*.replaced")]:
        folder = root / left_over.stem.removeprefix(".")
        try:
            with FileLock(hidden_sibling(folder, "lock")).acquire(blocking=False):
                shutil.rmtree(left_over, ignore_errors=True)
        except (Timeout, OSError):
            continue


def _is_token_cache(folder: Path) -> bool:
    """Whether the folder contains only a token cache's files, so that replacing it loses nothing else."""
    return folder.is_dir() and all(entry.name == META_FILE or entry.suffix == ".bin" for entry in folder.iterdir())


def _checksum(text: str) -> str:
    return blake2b(text.encode(), digest_size=16).hexdigest()
