"""Writing a checkpoint: a snapshot in memory of its own, then one file for each process.

The snapshot is all that training waits for. Its memory is kept from one save to the next: the pages are there
already, and a GPU can copy into them by itself while the next step is being prepared.
"""

import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from qkv.train.checkpoint.files import DTYPES, VERSION, shard_name
from qkv.train.checkpoint.slices import TensorSlice

PhaseCallback = Callable[[str], None]

_DTYPE_NAMES = {dtype: name for name, dtype in DTYPES.items()}
_BLOCK_BYTES = 2**23  # bytes that are summed and written while they are in the processor's cache


@dataclass(frozen=True)
class SnapshotSlice:
    """A piece in a snapshot: `values` are ours, on the CPU and contiguous."""

    name: str
    values: Tensor
    offset: tuple[int, ...]
    shape: tuple[int, ...]

    @property
    def key(self) -> str:
        """Its name in the file: `weight`, or `weight[0:4,8:16]` where it is a box of the whole."""
        if tuple(self.values.shape) == self.shape:
            return self.name
        return f"{self.name}[{','.join(f'{o}:{o + n}' for o, n in zip(self.offset, self.values.shape, strict=True))}]"

    @property
    def num_bytes(self) -> int:
        return self.values.numel() * self.values.element_size()


class Snapshot:
    """This process's pieces as they were at one moment."""

    def __init__(self) -> None:
        self.slices: list[SnapshotSlice] = []
        self._memory: dict[str, Tensor] = {}  # by key, for the next time
        self._events: list[torch.cuda.Event] = []

    @property
    def num_bytes(self) -> int:
        return sum(kept.num_bytes for kept in self.slices)

    def take(self, tensors: Mapping[str, Sequence[TensorSlice]]) -> None:
        """Copy all pieces. Copies from a GPU are queued like any kernel, so later changes come after them."""
        before, self._memory, self.slices = self._memory, {}, []
        streams = set()
        for name, pieces in tensors.items():
            for piece in pieces:
                values = piece.values.detach()
                if values.dtype not in _DTYPE_NAMES:
                    raise TypeError(f"{name}: {values.dtype} cannot be kept in a checkpoint")
                if not values.numel() and 0 not in piece.shape:
                    continue  # this process holds nothing of it
                kept = SnapshotSlice(name, _memory_for(values, piece, name, before), piece.offset, piece.shape)
                if kept.key in self._memory:
                    raise ValueError(f"{kept.key}: given twice")
                self._memory[kept.key] = kept.values
                kept.values.copy_(values, non_blocking=values.is_cuda)
                if values.is_cuda:
                    streams.add(torch.cuda.current_stream(values.device))
                self.slices.append(kept)
        self.slices.sort(key=lambda kept: -kept.values.element_size())  # so that every tensor is aligned in the file
        self._events = [stream.record_event() for stream in streams]

    def wait(self) -> None:
        """Wait until the copies are made."""
        for event in self._events:
            event.synchronize()


def _memory_for(values: Tensor, piece: TensorSlice, name: str, before: Mapping[str, Tensor]) -> Tensor:
    """Memory of the last snapshot where it fits, else new."""
    old = before.get(SnapshotSlice(name, values, piece.offset, piece.shape).key)
    if old is not None and old.dtype == values.dtype and old.shape == values.shape:
        return old
    try:
        return torch.empty(values.shape, dtype=values.dtype, pin_memory=values.is_cuda)
    except RuntimeError:  # no more memory can be pinned: slower, but as good
        return torch.empty(values.shape, dtype=values.dtype)


def write_shard(
    folder: Path, rank: int, world_size: int, slices: Sequence[SnapshotSlice], phase: PhaseCallback
) -> dict[str, Any]:
    """Write one process's pieces as safetensors, on the disk when this returns; what the manifest says of them.

    The file is written here and not by the library because each block is summed on its way, and because a full disk
    must come back as the `OSError` it is.
    """
    head = _header(slices)
    half = sum(piece.num_bytes for piece in slices) / 2
    described = []
    path = folder / shard_name(rank, world_size)
    with path.open("wb") as out:
        out.write(head)
        position = len(head)
        for piece in slices:
            digest = sha256()
            for block in _blocks(piece.values):
                digest.update(block)
                out.write(block)
                half -= len(block)
                if half <= 0 < half + len(block):
                    phase("half")
            described.append(_describe(piece, position, digest.hexdigest()))
            position += piece.num_bytes
        phase("shard")
        out.flush()
        os.fsync(out.fileno())
    return {
        "version": VERSION,
        "rank": rank,
        "file": path.name,
        "bytes": position,
        "header": {"bytes": len(head), "checksum": sha256(head).hexdigest()},
        "pieces": described,
    }


def _header(slices: Sequence[SnapshotSlice]) -> bytes:
    """The header of a safetensors file: its length, then JSON, filled up with spaces to a multiple of 8."""
    entries, position = {}, 0
    for piece in slices:
        place = [position, position + piece.num_bytes]
        dtype = _DTYPE_NAMES[piece.values.dtype]
        entries[piece.key] = {"dtype": dtype, "shape": list(piece.values.shape), "data_offsets": place}
        position += piece.num_bytes
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


def _describe(piece: SnapshotSlice, position: int, checksum: str) -> dict[str, Any]:
    return {
        "name": piece.name,
        "dtype": _DTYPE_NAMES[piece.values.dtype],
        "shape": list(piece.shape),
        "offset": list(piece.offset),
        "size": list(piece.values.shape),
        "start": position,
        "bytes": piece.num_bytes,
        "checksum": checksum,
    }


def _blocks(values: Tensor) -> Iterator[memoryview]:
    """A tensor's bytes, a block at a time."""
    if values.numel():
        data = values.reshape(-1).view(torch.uint8).numpy().data
        for start in range(0, len(data), _BLOCK_BYTES):
            yield data[start : start + _BLOCK_BYTES]
