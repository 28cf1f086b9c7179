"""The folder of a token cache: its files, and how it is written atomically.

    meta.json               counts, types, the problems found while building, and a checksum of itself
    <field>.tokens.bin      the tokens of all examples, concatenated: uint16 if they fit, else int32 (or float32);
                            of payloads, the bytes of files (uint8), samples of sounds (int16), or rows of uint8
                            or float16
    <field>.offsets.bin     int64, N + 1 numbers for N examples: where each example begins, and the total
    <field>.lengths.bin     int32, N numbers: the length of each example
    location.files.bin      int32: the file that each example came from, as an index into the list in meta.json
    location.lines.bin      int64: the line in that file

All numbers are little-endian. A cache is written to `.<name>.building`, which is renamed when all files are complete
and on disk. The process that builds a cache holds the lock `.<name>.lock`. The operating system releases the lock when
the process ends. So if the lock of a `.building` folder is free, its process was killed, and the folder can be deleted.
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
from qkv.files import describe_os_error, hidden_sibling, read_json_object, replace_folder, write_atomically

CACHE_VERSION = 2
META_FILE = "meta.json"
DISK_DTYPES = {  # name in meta.json → dtype for numpy
    "uint8": "|u1",
    "uint16": "<u2",
    "int16": "<i2",
    "int32": "<i4",
    "int64": "<i8",
    "float16": "<f2",
    "float32": "<f4",
}


class DamagedCache(QkvError):
    """The files of a token cache are damaged or incomplete. The cache can be deleted and built again."""


def field_file(folder: Path, field: str, part: str) -> Path:
    """The path of one of a field's files: `part` is tokens, offsets or lengths."""
    if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", field) or field == "location":
        raise UsageError(
            f"{field!r} cannot be the name of an encoded field, because it is part of a file name; use letters, digits "
            "and underscores, and not the reserved name 'location'"
        )
    return folder / f"{field}.{part}.bin"


def location_file(folder: Path, part: str) -> Path:
    """The path of one of the location files: `part` is files or lines."""
    return folder / f"location.{part}.bin"


def write_meta(folder: Path, meta: dict[str, Any]) -> None:
    """Write `meta.json` and flush it to disk."""
    text = json.dumps({"version": CACHE_VERSION, **meta}, sort_keys=True)
    content = json.dumps({"checksum": _checksum(text), "meta": json.loads(text)}, sort_keys=True, indent=1)
    write_atomically(folder / META_FILE, content)


def read_meta(folder: Path) -> dict[str, Any]:
    """Read `meta.json`; raises `DamagedCache`."""
    path = folder / META_FILE
    if not path.exists():
        raise DamagedCache(f"{folder} is not a token cache: it has no {META_FILE}")
    try:
        content = read_json_object(path)
        meta: dict[str, Any] = content["meta"]
        if content["checksum"] != _checksum(json.dumps(meta, sort_keys=True)):
            raise DamagedCache(f"{path} is damaged: it does not match the checksum that it contains")
        if meta["version"] != CACHE_VERSION:
            raise DamagedCache(
                f"{folder} has version {meta['version']} of the cache format; this qkv reads {CACHE_VERSION}"
            )
    except DamagedCache:
        raise
    except (QkvError, KeyError, TypeError) as error:
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
        raise QkvError(
            f"no token cache can be built in {folder.parent}: {describe_os_error(error)}; choose a folder on a local, "
            "writable disk"
        ) from error
    try:
        yield
    finally:
        lock.release()


@contextmanager
def building_folder(folder: Path) -> Iterator[Path]:
    """Yield a temporary folder. It replaces `folder` if the block succeeds, and is deleted if the block fails.

    The caller must hold the lock, and must have flushed every file to disk (fsync) at the end of the block.
    """
    if folder.exists() and not _is_token_cache(folder):
        raise UsageError(
            f"{folder} contains files that are not of a token cache and would be lost; choose another folder"
        )
    building, replaced = hidden_sibling(folder, "building"), hidden_sibling(folder, "replaced")
    try:
        shutil.rmtree(building, ignore_errors=True)
        shutil.rmtree(replaced, ignore_errors=True)
        building.mkdir()
        try:
            yield building
            replace_folder(building, folder)  # a process that has mapped the old files can still read them
        finally:
            shutil.rmtree(building, ignore_errors=True)
            shutil.rmtree(replaced, ignore_errors=True)
    except OSError as error:
        raise QkvError(
            f"the token cache {folder} could not be written: {describe_os_error(error)}; free space on the "
            "disk, or choose another disk"
        ) from error


def remove_stale_builds(root: Path) -> None:
    """Delete the unfinished folders of killed builds in `root`. Folders of running builds are locked, and stay."""
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
