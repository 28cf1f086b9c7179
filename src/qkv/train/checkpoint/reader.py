"""Reading a checkpoint: every byte is checked against the manifest before it is used."""

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from hashlib import sha256
from math import prod
from operator import index
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from qkv.errors import QkvError, shorten, suggest_name
from qkv.files import describe_os_error, open_file
from qkv.train.checkpoint.files import (
    DTYPES,
    MANIFEST_FILE,
    DamagedCheckpoint,
    parse_step,
    raise_as_damaged,
    read_checksummed,
    shard_name,
)
from qkv.train.checkpoint.slices import SliceBounds, index_within, intersection, is_inside, tiling_problem

_BLOCK_BYTES = 2**22  # the block size for checksums


@dataclass(frozen=True)
class _StoredSlice:
    """The location of one slice of a tensor."""

    file: str
    start: int
    bytes: int
    checksum: str
    bounds: SliceBounds


@dataclass
class _StoredTensor:
    """A tensor, and the locations of its slices."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    slices: list[_StoredSlice] = field(default_factory=list)


def group_slices(shards: Sequence[Mapping[str, Any]]) -> dict[str, _StoredTensor]:
    """Group the slices of all shards by tensor. Raise `ValueError` if they do not make up whole tensors."""
    tensors: dict[str, _StoredTensor] = {}
    for shard in shards:
        for entry in shard["slices"]:
            name, dtype, shape = entry["name"], DTYPES[entry["dtype"]], tuple(entry["shape"])
            tensor = tensors.setdefault(name, _StoredTensor(dtype, shape))
            if (tensor.dtype, tensor.shape) != (dtype, shape):
                raise ValueError(f"{name}: slices of different dtypes or shapes")
            bounds = tuple(entry["offset"]), tuple(entry["size"])
            numbers = (*shape, *bounds[0], *bounds[1], entry["start"], entry["bytes"])
            if type(name) is not str or not all(type(number) is int and number >= 0 for number in numbers):
                raise ValueError(f"{name}: the numbers {shorten(str(numbers))} must be integers of at least 0")
            if entry["start"] + entry["bytes"] > shard["bytes"]:
                raise ValueError(f"{name}: a slice ends after the end of {shard['file']}")
            if entry["bytes"] != prod(bounds[1]) * dtype.itemsize:
                raise ValueError(f"{name}: {entry['bytes']} bytes for a slice of {bounds[1]}")
            stored = _StoredSlice(shard["file"], entry["start"], entry["bytes"], entry["checksum"], bounds)
            tensor.slices.append(stored)
    for name, tensor in tensors.items():
        problem = tiling_problem(tensor.shape, (part.bounds for part in tensor.slices))
        if problem:
            raise ValueError(f"{name}: {problem}")
    return tensors


class Checkpoint:
    """One checkpoint. The constructor verifies the manifest, and checks that all files exist with the right length.

    >>> checkpoint = CheckpointFolder("runs/a/checkpoints", max_to_keep=3).newest()
    >>> checkpoint.state["progress"], checkpoint.read_tensor("model.embedding.token.weight")
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        manifest = read_checksummed(folder / MANIFEST_FILE)
        with raise_as_damaged(folder / MANIFEST_FILE):
            self.step: int = manifest["step"]
            if self.step != parse_step(folder.name):
                raise DamagedCheckpoint(
                    f"{folder}: contains step {self.step}, so the folder was renamed; give it its old name"
                )
            self.state: dict[str, Any] = dict(manifest["state"])
            self.world_size: int = manifest["world_size"]  # the number of ranks that wrote it
            self._files: dict[str, dict[str, Any]] = {shard["file"]: shard for shard in manifest["shards"]}
            if len(self._files) != self.world_size:
                raise DamagedCheckpoint(f"{folder}: the manifest lists {len(self._files)} of {self.world_size} shards")
            for rank, shard in enumerate(manifest["shards"]):
                if shard["file"] != shard_name(rank, self.world_size):
                    raise DamagedCheckpoint(
                        f"{folder}: the manifest lists {shard['file']!r}, which is not the name of a shard"
                    )
                self._check_length(folder / shard["file"], shard["bytes"])
            self._tensors = group_slices(manifest["shards"])

    def tensor_names(self) -> list[str]:
        """Return the names of all tensors, sorted."""
        return sorted(self._tensors)

    def shape(self, name: str) -> tuple[int, ...]:
        """Return the shape of a whole tensor."""
        return self._tensor(name).shape

    def read_tensor(self, name: str) -> Tensor:
        """Read a whole tensor. It is assembled from its slices."""
        shape = self.shape(name)
        return self.read_slice(name, (0,) * len(shape), shape)

    def read_slice(self, name: str, offset: Sequence[int], shape: Sequence[int]) -> Tensor:
        """Read the slice of `shape` at `offset` of a tensor. Each stored slice that overlaps with it is verified."""
        tensor = self._tensor(name)
        wanted = tuple(offset), tuple(shape)
        if not is_inside(wanted, tensor.shape):
            raise ValueError(f"{name}: a slice of {wanted[1]} at {wanted[0]} is not inside {tensor.shape}")
        touched = [(part, common) for part in tensor.slices if (common := intersection(part.bounds, wanted))]
        if len(touched) == 1 and touched[0][0].bounds == wanted:
            return self._read(name, touched[0][0], tensor.dtype)
        result = torch.empty(wanted[1], dtype=tensor.dtype)
        for stored, common in touched:
            values = self._read(name, stored, tensor.dtype)
            result[index_within(common, wanted[0])] = values[index_within(common, stored.bounds[0])]
        return result

    def verify(self) -> None:
        """Verify every byte of every file. Raise `DamagedCheckpoint` if one is wrong."""
        for name, file in self._files.items():
            with raise_as_damaged(self.folder / MANIFEST_FILE):
                ranges = [(0, index(file["header"]["bytes"]), file["header"]["checksum"], "the header")]
            ranges += [(one["start"], one["bytes"], one["checksum"], one["name"]) for one in file["slices"]]
            path = self.folder / name
            self._check_length(path, file["bytes"])
            position = 0
            with _open(path) as source:
                for start, size, checksum, what in ranges:
                    if start != position or _checksum(source, size) != checksum:
                        raise DamagedCheckpoint(f"{path}: damaged: {what} does not match its checksum")
                    position += size
            if position != file["bytes"]:
                raise DamagedCheckpoint(f"{path}: {file['bytes'] - position} bytes belong to no tensor")

    def _tensor(self, name: str) -> _StoredTensor:
        try:
            return self._tensors[name]
        except KeyError:
            hint = suggest_name(name, self._tensors) if len(self._tensors) < 5000 else ""
            raise QkvError(f"{self.folder}: no tensor {name!r}; {hint}") from None

    def _read(self, name: str, stored: _StoredSlice, dtype: torch.dtype) -> Tensor:
        """Read the values of a stored slice, and verify them in memory. The file is read only once."""
        data = torch.empty(stored.bytes, dtype=torch.uint8)
        view = data.numpy().data
        path = self.folder / stored.file
        with _open(path) as source:
            source.seek(stored.start)
            got = source.readinto(view) if stored.bytes else 0
        if got != stored.bytes or sha256(view).hexdigest() != stored.checksum:
            raise DamagedCheckpoint(f"{path}: damaged: {name} does not match its checksum")
        return data.view(dtype).reshape(stored.bounds[1])

    def _check_length(self, path: Path, expected: int) -> None:
        with _open(path) as source:
            length = os.fstat(source.fileno()).st_size
        if length != expected:
            raise DamagedCheckpoint(f"{path}: damaged: the file has {length:,} bytes instead of {expected:,}")


@contextmanager
def _open(path: Path) -> Iterator[Any]:
    """Open a file for reading. Any failure is a `DamagedCheckpoint`."""
    if not os.path.exists(path):
        raise DamagedCheckpoint(f"{path}: this file is missing")
    try:
        source = open_file(path)
    except QkvError as error:
        raise DamagedCheckpoint(str(error)) from None
    try:
        with source:
            yield source
    except OSError as error:
        raise DamagedCheckpoint(f"{path}: cannot be read ({describe_os_error(error)})") from error


def _checksum(source: Any, size: int) -> str:
    """Return the checksum of the next `size` bytes, or of fewer bytes if the file ends before."""
    digest = sha256()
    while size > 0 and (block := source.read(min(size, _BLOCK_BYTES))):
        digest.update(block)
        size -= len(block)
    return digest.hexdigest()
