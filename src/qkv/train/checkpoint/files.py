"""The files of a checkpoint: their names, and JSON files that start with a checksum of themselves.

    checkpoints/
      best.json                                 the step with the best metric
      step-000000123/
        shard-00000-of-00002.safetensors        the slices that rank 0 saved
        shard-00001-of-00002.safetensors
        manifest.json                           written last: step, state, and checksums of every byte of the shards
      .step-000000150.writing/                  not complete yet
      .step-000000090.leaving/                  being deleted

Checksums are SHA-256. With CPU instructions for it, SHA-256 processes 1.4 GB/s on one core, twice as fast as BLAKE2b,
and it releases Python's global lock. A checksum of 32 bits would be faster, but would miss one damaged file in four
billion.
"""

import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from qkv.errors import QkvError, shorten
from qkv.files import hidden_sibling, is_sealed, parse_json, read_bytes, seal_json, write_atomically

VERSION = 2
"""The version of the format. In version 1, keys of the state and of the config had other names."""
MANIFEST_FILE = "manifest.json"
BEST_FILE = "best.json"
WEIGHTS_PREFIX, OPTIMIZER_PREFIX, EMA_PREFIX = "model.", "optimizer.", "average."
"""The beginnings of the names of tensors: weights, state of the optimizer, averages of weights."""
DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}
"""The dtypes by their names in safetensors files."""


class DamagedCheckpoint(QkvError):
    """A checkpoint is incomplete, or its bytes have changed since it was written."""


class OtherFormatVersion(QkvError):
    """A checkpoint was written by another version of qkv. It is not damaged, so no older checkpoint is used in its
    place.
    """


def step_folder_name(step: int) -> str:
    """Return the name of a checkpoint's folder."""
    return f"step-{step:09d}"


def parse_step(name: str) -> int | None:
    """Return the step in the name of a checkpoint's folder; None if this is not such a name."""
    found = re.fullmatch(r"step-(\d{9,})", name)
    return int(found[1]) if found else None


def shard_name(rank: int, world_size: int) -> str:
    """Return the name of the file that a rank writes."""
    return f"shard-{rank:05d}-of-{world_size:05d}.safetensors"


def write_checksummed(path: Path, content: dict[str, Any]) -> None:
    """Write a JSON object that starts with the checksum of the bytes after it, and flush the file to disk."""
    write_atomically(path, seal_json(content))


def read_checksummed(path: Path) -> dict[str, Any]:
    """Read a file of `write_checksummed`. Raise `DamagedCheckpoint` if any byte of it has changed."""
    if not os.path.exists(path):
        raise DamagedCheckpoint(f"{path.parent}: there is no {path.name}, so this checkpoint is incomplete")
    try:
        data = read_bytes(path)
    except QkvError as error:
        raise DamagedCheckpoint(str(error)) from None
    if not is_sealed(data):
        raise DamagedCheckpoint(f"{path}: damaged: its content does not match its checksum")
    with raise_as_damaged(path):
        content: dict[str, Any] = parse_json(data)["content"]
        version = content["version"]
    if version == 1:
        raise OtherFormatVersion(
            f"{path}: written by an older qkv (version 1 of the format, with other names for the state and the model's "
            "config; this qkv reads version 2). Train again, or use the qkv that wrote it"
        )
    if version != VERSION:
        raise OtherFormatVersion(
            f"{path}: written by a newer qkv (version {shorten(str(version))} of the format; ours is {VERSION}). "
            "Update qkv, or delete this checkpoint to resume from an older one"
        )
    return content


@contextmanager
def raise_as_damaged(path: Path) -> Iterator[None]:
    """Raise `DamagedCheckpoint` if the block fails because a value in the file is missing or of the wrong type."""
    try:
        yield
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise DamagedCheckpoint(
            f"{path}: a value is missing or of the wrong type, so qkv did not write this file "
            f"({type(error).__name__}: {shorten(str(error))})"
        ) from error


def is_checkpoint(path: Path) -> bool:
    """Return whether a path is the folder of a checkpoint."""
    return (path / MANIFEST_FILE).is_file() and parse_step(path.resolve().name) is not None


def run_path(path: Path) -> Path:
    """Return the run folder of a checkpoint. Other paths are returned unchanged."""
    return path.resolve().parent.parent if is_checkpoint(path) else path


def remove_folder(folder: Path) -> None:
    """Delete a checkpoint. Rename it first, so that a kill never leaves an incomplete folder of the same name."""
    leaving = hidden_sibling(folder.with_name(folder.stem.removeprefix(".")), "leaving")
    shutil.rmtree(leaving, ignore_errors=True)
    try:
        folder.rename(leaving)
    except FileNotFoundError:
        return
    shutil.rmtree(leaving, ignore_errors=True)
