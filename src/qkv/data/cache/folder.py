"""A token cache's folder: what lies in it, and how one comes into being whole or not at all.

    meta.json               counts, types, checksums, what was met while building, and a checksum of itself
    <field>.tokens.bin      the tokens of all examples, end to end: uint16 where they fit, else int32 (or float32)
    <field>.offsets.bin     int64, one more than there are examples: where each begins
    <field>.lengths.bin     int32, one for each example
    where.files.bin         int32: the file that each example came from, by its number in meta.json
    where.lines.bin         int64: the line in it

All numbers are little-endian. A cache is written to `.<name>.building` and renamed when it is complete and on the
disk. Whoever builds holds the lock `.<name>.lock`, which the system frees when a process dies; so a folder that is
`.building` without a holder is left over from a killed build, and may go.
"""

import json
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import blake2b
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from qkv.errors import QkvError, UsageError

CACHE_VERSION = 1
META_FILE = "meta.json"
DISK_DTYPES = {
    "uint16": "<u2",
    "int32": "<i4",
    "int64": "<i8",
    "float32": "<f4",
}  # name in meta.json → type in the file


class DamagedCache(QkvError):
    """A token cache that is not what was written. Building it again is always safe."""


def field_file(folder: Path, field: str, part: str) -> Path:
    """The file of one field; its name goes into the file's, so it must be a plain one."""
    if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", field) or field == "where":
        raise UsageError(f"{field!r} cannot name an encoded field; use letters, digits and underscores")
    return folder / f"{field}.{part}.bin"


def write_meta(folder: Path, meta: dict[str, Any]) -> None:
    """Write `meta.json`, on the disk when this returns."""
    text = json.dumps({"version": CACHE_VERSION, **meta}, sort_keys=True)
    with (folder / META_FILE).open("w", encoding="utf-8") as out:
        out.write(json.dumps({"checksum": _checksum(text), "meta": json.loads(text)}, sort_keys=True, indent=1))
        out.flush()
        os.fsync(out.fileno())


def read_meta(folder: Path) -> dict[str, Any]:
    """What `write_meta` wrote, or `DamagedCache`."""
    try:
        whole = json.loads((folder / META_FILE).read_text(encoding="utf-8"))
        meta: dict[str, Any] = whole["meta"]
        if whole["checksum"] != _checksum(json.dumps(meta, sort_keys=True)):
            raise DamagedCache(f"{folder / META_FILE} does not match its own checksum")
        if meta["version"] != CACHE_VERSION:
            raise DamagedCache(
                f"{folder} was written in version {meta['version']} of the format; this is {CACHE_VERSION}"
            )
    except FileNotFoundError:
        raise DamagedCache(f"{folder} is not a token cache: it has no {META_FILE}") from None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DamagedCache(f"{folder / META_FILE} cannot be read: {error}") from None
    return meta


@contextmanager
def build_lock(folder: Path) -> Iterator[None]:
    """Hold the right to build `folder`; waits while another process builds it."""
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        lock = FileLock(_sibling(folder, "lock"))
        lock.acquire()
    except (OSError, NotImplementedError) as error:
        reason = getattr(error, "strerror", None) or error
        raise QkvError(f"no token cache can be built in {folder.parent}: {reason}") from error
    try:
        yield
    finally:
        lock.release()


@contextmanager
def replaced(folder: Path) -> Iterator[Path]:
    """A temporary folder that takes the place of `folder` when the block ends well, and is gone when it does not.

    The caller holds the lock. What the block wrote must be on the disk (fsync) when it ends.
    """
    if folder.exists() and not _is_token_cache(folder):
        raise UsageError(f"{folder} exists and is not a token cache; choose another place for one")
    building, old = _sibling(folder, "building"), _sibling(folder, "replaced")
    try:
        for left in (building, old):
            shutil.rmtree(left, ignore_errors=True)
        building.mkdir()
        try:
            yield building
            sync_folder(building)
            if folder.exists():
                folder.rename(old)  # a process that has it open keeps its pages
            building.rename(folder)
            sync_folder(folder.parent)
        finally:
            shutil.rmtree(building, ignore_errors=True)
            shutil.rmtree(old, ignore_errors=True)
    except OSError as error:
        raise QkvError(f"the token cache {folder} could not be written: {error.strerror or error}") from error


def remove_stale_builds(root: Path) -> None:
    """Remove what killed builds of any cache in `root` left behind; those being built now are locked and stay."""
    for left in [*root.glob(".*.building"), *root.glob(".*.replaced")]:
        try:
            name = left.stem.removeprefix(".")
            with FileLock(_sibling(root / name, "lock")).acquire(blocking=False):
                shutil.rmtree(left, ignore_errors=True)
        except (Timeout, OSError):
            continue


def _sibling(folder: Path, ending: str) -> Path:
    return folder.with_name(f".{folder.name}.{ending}")


def _is_token_cache(folder: Path) -> bool:
    """Whether nothing is in the folder but what a token cache is made of, so that replacing it loses nothing else."""
    return folder.is_dir() and all(entry.name == META_FILE or entry.suffix == ".bin" for entry in folder.iterdir())


def _checksum(text: str) -> str:
    return blake2b(text.encode(), digest_size=16).hexdigest()


def sync_folder(folder: Path) -> None:
    """Bring the folder's own entries to the disk, where the system can (Windows cannot open a folder)."""
    if os.name == "posix":
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
