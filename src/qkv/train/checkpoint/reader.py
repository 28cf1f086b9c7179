"""Reading a checkpoint: every byte that is used is checked against the manifest first."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from math import prod
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from qkv.errors import QkvError, suggest_name
from qkv.train.checkpoint.files import DTYPES, MANIFEST, DamagedCheckpoint, parse_step, read_sealed, shard_name
from qkv.train.checkpoint.slices import SliceBounds, index_within, intersection, is_inside, tiling_problem

_BLOCK_BYTES = 2**22  # bytes read at a time where they are only checked


@dataclass(frozen=True)
class _StoredSlice:
    """A piece as the manifest knows it."""

    file: str
    start: int
    bytes: int
    checksum: str
    bounds: SliceBounds


@dataclass
class _StoredTensor:
    """A tensor as the manifest knows it."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    slices: list[_StoredSlice] = field(default_factory=list)


class Checkpoint:
    """One checkpoint. Opening it checks the manifest, and that all files are there in their full length.

    >>> checkpoint = Checkpoints("runs/a/checkpoints", keep=3).newest()
    >>> checkpoint.state["epoch"], checkpoint.whole("decoder.embedding.weight")
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.skipped: list[str] = []  # newer ones that could not be used, and why
        manifest = read_sealed(folder / MANIFEST)
        self.step: int = manifest["step"]
        if self.step != parse_step(folder.name):
            raise DamagedCheckpoint(f"{folder}: holds step {self.step}; the folder was renamed or mixed up")
        self.state: dict[str, Any] = manifest["state"]
        self.world_size: int = manifest["ranks"]  # how many processes wrote it
        self._files: dict[str, dict[str, Any]] = {}
        self._tensors: dict[str, _StoredTensor] = {}
        for rank, part in enumerate(manifest["parts"]):
            if part["file"] != shard_name(rank, self.world_size):
                raise DamagedCheckpoint(f"{folder}: {part['file']!r} is not the name of a shard")
            self._files[part["file"]] = part
            for piece in part["pieces"]:
                self._add(part["file"], piece)
        for name, file in self._files.items():
            self._check_length(folder / name, file["bytes"])
        for name, tensor in self._tensors.items():
            problem = tiling_problem(tensor.shape, (piece.bounds for piece in tensor.slices))
            if problem:
                raise DamagedCheckpoint(f"{folder}: {name}: {problem}")

    def tensor_names(self) -> list[str]:
        """The tensors in it, sorted."""
        return sorted(self._tensors)

    def shape(self, name: str) -> tuple[int, ...]:
        return self._tensor(name).shape

    def dtype(self, name: str) -> torch.dtype:
        return self._tensor(name).dtype

    def read_tensor(self, name: str) -> Tensor:
        """A tensor, put together from however many pieces it was written in."""
        shape = self.shape(name)
        return self.read_slice(name, (0,) * len(shape), shape)

    def read_slice(self, name: str, offset: Sequence[int], shape: Sequence[int]) -> Tensor:
        """The box of `shape` at `offset` of a tensor. Each piece that it touches is read and checked."""
        tensor = self._tensor(name)
        wanted = tuple(offset), tuple(shape)
        if not is_inside(wanted, tensor.shape):
            raise ValueError(f"{name}: a box of {wanted[1]} at {wanted[0]} is not inside {tensor.shape}")
        touched = [(piece, shared) for piece in tensor.slices if (shared := intersection(piece.bounds, wanted))]
        if len(touched) == 1 and touched[0][0].bounds == wanted:
            return self._read(name, touched[0][0], tensor.dtype)
        result = torch.empty(wanted[1], dtype=tensor.dtype)
        for piece, shared in touched:
            values = self._read(name, piece, tensor.dtype)
            result[index_within(shared, wanted[0])] = values[index_within(shared, piece.bounds[0])]
        return result

    def verify(self) -> None:
        """Check every byte of every file, or raise `DamagedCheckpoint`."""
        for name, file in self._files.items():
            ranges = [(0, file["header"]["bytes"], file["header"]["checksum"], "its header")]
            ranges += [(p["start"], p["bytes"], p["checksum"], p["name"]) for p in file["pieces"]]
            path = self.folder / name
            self._check_length(path, file["bytes"])
            position = 0
            try:
                with path.open("rb") as source:
                    for start, size, checksum, what in ranges:
                        if start != position or _checksum(source, size) != checksum:
                            raise DamagedCheckpoint(f"{path}: damaged in {what}")
                        position += size
            except OSError as error:
                raise DamagedCheckpoint(f"{path}: cannot be read ({error.strerror})") from error
            if position != file["bytes"]:
                raise DamagedCheckpoint(f"{path}: {file['bytes'] - position} bytes belong to nothing")

    def _add(self, file: str, piece: dict[str, Any]) -> None:
        name, dtype, shape = piece["name"], DTYPES[piece["dtype"]], tuple(piece["shape"])
        whole = self._tensors.setdefault(name, _StoredTensor(dtype, shape))
        if (whole.dtype, whole.shape) != (dtype, shape):
            raise DamagedCheckpoint(f"{self.folder}: {name} has pieces of different types or shapes")
        box = tuple(piece["offset"]), tuple(piece["size"])
        if piece["bytes"] != prod(box[1]) * dtype.itemsize:
            raise DamagedCheckpoint(f"{self.folder}: {name}: {piece['bytes']} bytes for a box of {box[1]}")
        whole.slices.append(_StoredSlice(file, piece["start"], piece["bytes"], piece["checksum"], box))

    def _tensor(self, name: str) -> _StoredTensor:
        try:
            return self._tensors[name]
        except KeyError:
            hint = suggest_name(name, self._tensors) if len(self._tensors) < 5000 else ""
            raise QkvError(f"{self.folder}: no tensor {name!r}; {hint}") from None

    def _read(self, name: str, piece: _StoredSlice, dtype: torch.dtype) -> Tensor:
        """A piece's numbers, in memory of their own; what was checked is what is returned."""
        data = torch.empty(piece.bytes, dtype=torch.uint8)
        view = data.numpy().data
        path = self.folder / piece.file
        try:
            with path.open("rb") as source:
                source.seek(piece.start)
                got = source.readinto(view) if piece.bytes else 0
        except OSError as error:
            raise DamagedCheckpoint(f"{path}: cannot be read ({error.strerror or error})") from error
        if got != piece.bytes or sha256(view).hexdigest() != piece.checksum:
            raise DamagedCheckpoint(f"{path}: damaged in {name}")
        return data.view(dtype).reshape(piece.bounds[1])

    def _check_length(self, path: Path, expected: int) -> None:
        try:
            length = path.stat().st_size
        except FileNotFoundError:
            raise DamagedCheckpoint(f"{path}: missing") from None
        except OSError as error:
            raise DamagedCheckpoint(f"{path}: cannot be read ({error.strerror})") from error
        if length != expected:
            raise DamagedCheckpoint(f"{path}: {length:,} bytes instead of {expected:,}")


def _checksum(source: Any, size: int) -> str:
    """The checksum of the next `size` bytes, or of fewer where the file ends."""
    digest = sha256()
    while size > 0 and (block := source.read(min(size, _BLOCK_BYTES))):
        digest.update(block)
        size -= len(block)
    return digest.hexdigest()
