"""Tensors on disk: safetensors, one file or several with an index. Nothing here unpickles anything."""

import json
import os
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from qkv.errors import QkvError

WEIGHTS_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"
MAX_SHARD_BYTES = 5_000_000_000
PICKLE_PATTERNS = ("*.bin", "*.pt", "*.pth", "*.ckpt", "*.pkl")
_PICKLE_HEADERS = (b"PK\x03\x04", b"\x80\x02", b"\x80\x03", b"\x80\x04", b"\x80\x05")

DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
}


class Weights:
    """The tensors of a folder, by name, read one at a time.

    Opening it checks that every file is whole. With `shapes_only`, tensors come without numbers (on the meta
    device): enough to check a folder of any size against its config.
    """

    def __init__(self, folder: Path, *, shapes_only: bool = False) -> None:
        self.folder = folder
        self.shapes_only = shapes_only
        self.shapes: dict[str, tuple[int, ...]] = {}
        self.dtypes: dict[str, torch.dtype] = {}
        self._files: dict[str, Any] = {}  # tensor name → the open file that holds it
        for path in _find_files(folder):
            self._open(path)

    def __contains__(self, name: str) -> bool:
        return name in self.shapes

    def get(self, name: str) -> Tensor:
        if self.shapes_only:
            return torch.empty(self.shapes[name], dtype=self.dtypes.get(name), device="meta")
        tensor: Tensor = self._files[name].get_tensor(name)
        return tensor.clone()  # theirs is a window on the file, which someone may write to

    @property
    def dtype(self) -> torch.dtype:
        """The type that most of the numbers are stored in."""
        sizes: dict[torch.dtype, int] = {}
        for name, dtype in self.dtypes.items():
            sizes[dtype] = sizes.get(dtype, 0) + torch.Size(self.shapes[name]).numel()
        return max(sizes, key=lambda dtype: sizes[dtype], default=torch.float32)

    def _open(self, path: Path) -> None:
        try:
            with path.open("rb") as file:
                start = file.read(9)
        except OSError as error:
            raise QkvError(f"{path}: cannot be read ({error.strerror})") from error
        # Safetensors start with the length of their header, which may look like a pickle's start, and a brace.
        if start.startswith(_PICKLE_HEADERS) and start[8:] != b"{":
            raise QkvError(
                f"{path}: this is a pickle, whatever its name says, and a pickle can run code; it was not opened. "
                "Ask for safetensors, or convert it where you trust it"
            )
        try:
            tensors: Any = safe_open(path, framework="pt")
            for name in tensors.keys():  # noqa: SIM118 - a safetensors file is not a dict
                part = tensors.get_slice(name)
                kind = part.get_dtype()
                self.shapes[name] = tuple(part.get_shape())
                if kind in DTYPES:
                    self.dtypes[name] = DTYPES[kind]
                self._files[name] = tensors
        except (SafetensorError, OSError, ValueError) as error:
            raise QkvError(
                f"{path}: not a whole safetensors file ({error}); it may have been cut off, fetch or copy it again"
            ) from error


def _find_files(folder: Path) -> list[Path]:
    """The weight files of a folder, or an error that says what is there instead."""
    if (folder / WEIGHTS_FILE).exists():
        return [folder / WEIGHTS_FILE]
    if (folder / INDEX_FILE).exists():
        return _files_in_index(folder)
    pickles = sorted(path.name for pattern in PICKLE_PATTERNS for path in folder.glob(pattern))
    if pickles:
        raise QkvError(
            f"{folder}: no safetensors, only {', '.join(pickles)}; these are pickles, which can run code, and are not "
            "opened. Ask for safetensors, or convert them where you trust them"
        )
    if (folder / "checkpoints").is_dir():
        raise QkvError(
            f"{folder}: no weights ({WEIGHTS_FILE} or {INDEX_FILE}), but the checkpoints of a run, which have them: it comes to "
            f"its end, or writes them anew, with: qkv train {shlex.quote(str(folder))}"
        )
    raise QkvError(f"{folder}: no weights ({WEIGHTS_FILE} or {INDEX_FILE})")


def _files_in_index(folder: Path) -> list[Path]:
    path = folder / INDEX_FILE
    index = read_json(path)
    shards = index.get("weight_map")
    if not isinstance(shards, dict) or not all(isinstance(name, str) for name in shards.values()):
        raise QkvError(f"{path}: no 'weight_map' from tensors to files")
    outside = [name for name in shards.values() if name != Path(name).name or name in ("", "..")]
    if outside:
        raise QkvError(f"{path}: {outside[0]!r} is not the name of a file in this folder")
    paths = [folder / name for name in sorted(set(shards.values()))]
    missing = [shard.name for shard in paths if not shard.exists()]
    if missing:
        raise QkvError(f"{folder}: {len(missing)} of {len(paths)} weight files are missing: {', '.join(missing)}")
    return paths


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object from a file, or an error that names the place."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise QkvError(f"{path}: no such file") from error
    except OSError as error:
        raise QkvError(f"{path}: cannot be read ({error.strerror})") from error
    except UnicodeDecodeError as error:
        raise QkvError(f"{path}: not text ({error.reason} at byte {error.start})") from error
    except json.JSONDecodeError as error:
        raise QkvError(f"{path}: line {error.lineno}, column {error.colno}: not JSON ({error.msg})") from error
    except (ValueError, RecursionError) as error:  # a number, or a depth, beyond what Python reads
        raise QkvError(f"{path}: not usable JSON ({error})") from error
    if not isinstance(value, dict):
        raise QkvError(f"{path}: expected an object {{…}}, found {type(value).__name__}")
    return value


def write_weights(folder: Path, tensors: Mapping[str, Tensor], max_shard_bytes: int = MAX_SHARD_BYTES) -> list[str]:
    """Write tensors as one file, or as several with an index when they are large; returns the files' names.

    Each file is written beside its place, flushed to disk and renamed: a crash leaves the old one or the new one.
    """
    shards: list[dict[str, Tensor]] = [{}]
    size = 0
    for name, tensor in tensors.items():
        bytes_ = tensor.numel() * tensor.element_size()
        if shards[-1] and size + bytes_ > max_shard_bytes:
            shards.append({})
            size = 0
        shards[-1][name] = tensor.detach().cpu().contiguous()
        size += bytes_
    if len(shards) == 1:
        _write_shard(folder / WEIGHTS_FILE, shards[0])
        return [WEIGHTS_FILE]
    names = [f"model-{i + 1:05d}-of-{len(shards):05d}.safetensors" for i in range(len(shards))]
    for name, shard in zip(names, shards, strict=True):
        _write_shard(folder / name, shard)
    total = sum(t.numel() * t.element_size() for t in tensors.values())
    where = {tensor: name for name, shard in zip(names, shards, strict=True) for tensor in shard}
    write_text(
        folder / INDEX_FILE, json.dumps({"metadata": {"total_size": total}, "weight_map": where}, indent=2) + "\n"
    )
    return [*names, INDEX_FILE]


def _write_shard(path: Path, tensors: dict[str, Tensor]) -> None:
    beside = path.with_name(path.name + ".partial")
    save_file(tensors, beside, metadata={"format": "pt"})
    settle(beside, path)


def write_text(path: Path, text: str) -> None:
    """Write a small file whole or not at all."""
    beside = path.with_name(path.name + ".partial")
    beside.write_text(text, encoding="utf-8")
    settle(beside, path)


def settle(beside: Path, path: Path) -> None:
    """Flush a finished file to disk and give it its name, readable by whom files usually are."""
    usual = os.umask(0)
    os.umask(usual)
    beside.chmod(0o666 & ~usual)
    with beside.open("rb+") as file:
        os.fsync(file.fileno())
    os.replace(beside, path)
