"""Writing a checkpoint: a snapshot in CPU memory, then one file for each rank.

Training waits only for the snapshot. Each save reuses the memory of the last snapshot, because allocation takes time.
The memory is pinned, so that copies from a GPU run in the background.
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
_BLOCK_BYTES = 2**23  # a block stays in the CPU's cache while it is hashed and written


@dataclass(frozen=True)
class SnapshotSlice:
    """A slice in a snapshot. `values` is a contiguous copy on the CPU."""

    name: str
    values: Tensor
    offset: tuple[int, ...]
    shape: tuple[int, ...]

    @property
    def key(self) -> str:
        """The name of the slice in the file: `weight`, or `weight[0:4,8:16]` for a part of a tensor."""
        if tuple(self.values.shape) == self.shape:
            return self.name
        return f"{self.name}[{','.join(f'{o}:{o + n}' for o, n in zip(self.offset, self.values.shape, strict=True))}]"

    @property
    def num_bytes(self) -> int:
        """The size of the values in bytes."""
        return self.values.numel() * self.values.element_size()


class Snapshot:
    """A copy of this rank's slices at one moment."""

    def __init__(self) -> None:
        self.slices: list[SnapshotSlice] = []
        self._memory: dict[str, Tensor] = {}  # the copies by key, to be reused
        self._events: list[torch.cuda.Event] = []

    @property
    def num_bytes(self) -> int:
        """The size of all slices in bytes."""
        return sum(one.num_bytes for one in self.slices)

    def take(self, tensors: Mapping[str, Sequence[TensorSlice]]) -> None:
        """Copy all slices. Copies from a GPU are only queued: later updates of the weights run after them."""
        before, self._memory, self.slices = self._memory, {}, []
        streams = set()
        for name, slices in tensors.items():
            for one in slices:
                values = one.values.detach()
                if values.dtype not in _DTYPE_NAMES:
                    raise TypeError(f"{name}: {values.dtype} cannot be saved in a checkpoint")
                if not values.numel() and 0 not in one.shape:
                    continue  # this rank has no part of the tensor
                copied = SnapshotSlice(name, _memory_for(values, one, name, before), one.offset, one.shape)
                if copied.key in self._memory:
                    raise ValueError(f"{copied.key}: this slice was given twice")
                self._memory[copied.key] = copied.values
                copied.values.copy_(values, non_blocking=values.is_cuda)
                if values.is_cuda:
                    streams.add(torch.cuda.current_stream(values.device))
                self.slices.append(copied)
        # Large elements come first, so that every tensor in the file is aligned.
        self.slices.sort(key=lambda copied: -copied.values.element_size())
        self._events = [stream.record_event() for stream in streams]

    def wait(self) -> None:
        """Wait until the copies are finished."""
        for event in self._events:
            event.synchronize()


def _memory_for(values: Tensor, original: TensorSlice, name: str, before: Mapping[str, Tensor]) -> Tensor:
    """Return memory for a copy: that of the last snapshot if it has the right size, else new memory."""
    old = before.get(SnapshotSlice(name, values, original.offset, original.shape).key)
    if old is not None and old.dtype == values.dtype and old.shape == values.shape:
        return old
    try:
        return torch.empty(values.shape, dtype=values.dtype, pin_memory=values.is_cuda)
    except RuntimeError:  # no more memory can be pinned; use ordinary memory, which is slower
        return torch.empty(values.shape, dtype=values.dtype)


def write_shard(
    folder: Path, rank: int, world_size: int, slices: Sequence[SnapshotSlice], phase: PhaseCallback
) -> dict[str, Any]:
    """Write one rank's slices as a safetensors file and flush it to disk. Return its description for the manifest.

    The safetensors library is not used, so that each block can be hashed while it is written, and so that a full disk
    raises an `OSError`.
    """
    head = _header(slices)
    half = sum(one.num_bytes for one in slices) / 2
    described = []
    path = folder / shard_name(rank, world_size)
    with path.open("wb") as out:
        out.write(head)
        position = len(head)
        for one in slices:
            digest = sha256()
            for block in _blocks(one.values):
                digest.update(block)
                out.write(block)
                half -= len(block)
                if half <= 0 < half + len(block):
                    phase("half")
            described.append(_describe(one, position, digest.hexdigest()))
            position += one.num_bytes
        phase("shard")
        out.flush()
        os.fsync(out.fileno())
    return {
        "version": VERSION,
        "rank": rank,
        "file": path.name,
        "bytes": position,
        "header": {"bytes": len(head), "checksum": sha256(head).hexdigest()},
        "slices": described,
    }


def _header(slices: Sequence[SnapshotSlice]) -> bytes:
    """Make the header of a safetensors file: its length, then JSON, padded with spaces to a multiple of 8 bytes."""
    entries, position = {}, 0
    for one in slices:
        dtype, span = _DTYPE_NAMES[one.values.dtype], [position, position + one.num_bytes]
        entries[one.key] = {"dtype": dtype, "shape": list(one.values.shape), "data_offsets": span}
        position += one.num_bytes
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


def _describe(one: SnapshotSlice, position: int, checksum: str) -> dict[str, Any]:
    return {
        "name": one.name,
        "dtype": _DTYPE_NAMES[one.values.dtype],
        "shape": list(one.shape),
        "offset": list(one.offset),
        "size": list(one.values.shape),
        "start": position,
        "bytes": one.num_bytes,
        "checksum": checksum,
    }


def _blocks(values: Tensor) -> Iterator[memoryview]:
    """Yield the bytes of a tensor, in blocks."""
    if values.numel():
        data = values.reshape(-1).view(torch.uint8).numpy().data
        for start in range(0, len(data), _BLOCK_BYTES):
            yield data[start : start + _BLOCK_BYTES]
