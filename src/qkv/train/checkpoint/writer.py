"""Writing a checkpoint: a snapshot in CPU memory, then one file for each rank.

Training waits only for the snapshot. Each save reuses the memory of the last snapshot, because allocation takes time.
The memory is pinned, so that copies from a GPU run in the background.
"""

import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from qkv.train.checkpoint.files import DTYPES, VERSION, shard_name
from qkv.train.checkpoint.slices import TensorSlice

_DTYPE_NAMES = {dtype: name for name, dtype in DTYPES.items()}
_BLOCK_BYTES = 2**23  # a block stays in the CPU's cache while it is hashed and written


class Snapshot:
    """A copy of this rank's slices at one moment. `slices` maps a key of the file to (tensor name, slice)."""

    def __init__(self) -> None:
        self.slices: dict[str, tuple[str, TensorSlice]] = {}
        self._events: list[torch.cuda.Event] = []

    @property
    def num_bytes(self) -> int:
        """The size of all slices in bytes."""
        return sum(one.values.nbytes for _, one in self.slices.values())

    def take(self, tensors: Mapping[str, Sequence[TensorSlice]]) -> None:
        """Copy all slices. Copies from a GPU are only queued: later updates of the weights run after them."""
        before, copies, streams = self.slices, {}, set()
        for name, slices in tensors.items():
            for part in slices:
                values = part.values.detach()
                if values.dtype not in _DTYPE_NAMES:
                    raise TypeError(f"{name}: {values.dtype} cannot be saved in a checkpoint")
                if not values.numel() and 0 not in part.shape:
                    continue  # this rank has no part of the tensor
                key = slice_key(name, part)
                if key in copies:
                    raise ValueError(f"{key}: this slice was given twice")
                copy = _memory_for(values, before[key][1].values if key in before else None)
                copy.copy_(values, non_blocking=values.is_cuda)
                copies[key] = name, replace(part, values=copy)
                if values.is_cuda:
                    streams.add(torch.cuda.current_stream(values.device))
        # Large elements come first, so that every tensor in the file is aligned.
        self.slices = dict(sorted(copies.items(), key=lambda item: -item[1][1].values.element_size()))
        self._events = [stream.record_event() for stream in streams]

    def wait(self) -> None:
        """Wait until the copies are finished."""
        for event in self._events:
            event.synchronize()


def slice_key(name: str, one: TensorSlice) -> str:
    """Return the name of a slice in the file: `weight`, or `weight[0:4,8:16]` for a part of a tensor."""
    if tuple(one.values.shape) == one.shape:
        return name
    return f"{name}[{','.join(f'{o}:{o + n}' for o, n in zip(*one.bounds, strict=True))}]"


def _memory_for(values: Tensor, old: Tensor | None) -> Tensor:
    """Return memory for a copy: the memory of the last snapshot if it has the right size, else new memory."""
    if old is not None and old.dtype == values.dtype and old.shape == values.shape:
        return old
    try:
        return torch.empty(values.shape, dtype=values.dtype, pin_memory=values.is_cuda)
    except RuntimeError:  # no more memory can be pinned; use ordinary memory, which is slower
        return torch.empty(values.shape, dtype=values.dtype)


def write_shard(
    folder: Path, rank: int, world_size: int, snapshot: Snapshot, phase: Callable[[str], None]
) -> dict[str, Any]:
    """Write one rank's slices as a safetensors file and flush it to disk. Return its description for the manifest.

    The safetensors library is not used, so that each block can be hashed while it is written, and so that a full disk
    raises an `OSError`.
    """
    head = _header(snapshot)
    half = snapshot.num_bytes / 2
    described = []
    path = folder / shard_name(rank, world_size)
    with path.open("wb") as out:
        out.write(head)
        position = len(head)
        for name, one in snapshot.slices.values():
            digest = sha256()
            for block in _blocks(one.values):
                digest.update(block)
                out.write(block)
                half -= len(block)
                if half <= 0 < half + len(block):
                    phase("half")
            described.append(_describe(name, one, position, digest.hexdigest()))
            position += one.values.nbytes
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


def _header(snapshot: Snapshot) -> bytes:
    """Make the header of a safetensors file: its length, then JSON, padded with spaces to a multiple of 8 bytes."""
    entries, position = {}, 0
    for key, (_, one) in snapshot.slices.items():
        dtype, span = _DTYPE_NAMES[one.values.dtype], [position, position + one.values.nbytes]
        entries[key] = {"dtype": dtype, "shape": list(one.values.shape), "data_offsets": span}
        position += one.values.nbytes
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


def _describe(name: str, one: TensorSlice, position: int, checksum: str) -> dict[str, Any]:
    return {
        "name": name,
        "dtype": _DTYPE_NAMES[one.values.dtype],
        "shape": list(one.shape),
        "offset": list(one.offset),
        "size": list(one.values.shape),
        "start": position,
        "bytes": one.values.nbytes,
        "checksum": checksum,
    }


def _blocks(values: Tensor) -> Iterator[memoryview]:
    """Yield the bytes of a tensor, in blocks."""
    if values.numel():
        data = values.reshape(-1).view(torch.uint8).numpy().data
        for start in range(0, len(data), _BLOCK_BYTES):
            yield data[start : start + _BLOCK_BYTES]
