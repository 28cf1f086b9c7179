"""Key/value caches for decoding, owned by the caller: a stack's own keys and values, and those of the source.

    cache = network.new_cache(batch_size=8, capacity=256)
    network(ids, cache=cache)         # writes the keys and values of `ids`, attends to all written before

A self cache grows. A cross cache is filled once from the encoder's output and never copied per beam: the beams of one
source are more queries against the same keys. Every slot keeps the document id and position of its token, so that the
mask rule needs no special case for caching: an empty slot has document id 0.

B batch, T new tokens, L slots, S source tokens, KV key/value heads, D head dim, C model width
"""

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor
from torch.nn.functional import pad

from qkv.blocks.kernels.prepared import NO_HINTS, KernelHints, PreparedMask
from qkv.blocks.mask import SequenceLayout


class SelfCache:
    """The keys and values of the tokens so far, per layer. All sequences fill the same slots.

    It shows attention the filled slots, and is enlarged when it is full. `kernels/static_cache.py` has one that keeps
    its shape, for CUDA graphs and compiled steps.
    """

    is_static = False

    def __init__(
        self,
        layers: int,
        batch_size: int,
        kv_heads: int,
        capacity: int,
        head_dim: int,
        *,
        device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.float32,
    ) -> None:
        if capacity < 1 or batch_size < 1:
            raise ValueError(f"batch_size = {batch_size} and capacity = {capacity} of a cache must be at least 1")
        shape = (batch_size, kv_heads, capacity, head_dim)
        self.keys = [torch.zeros(shape, device=device, dtype=dtype) for _ in range(layers)]
        self.values = [torch.zeros(shape, device=device, dtype=dtype) for _ in range(layers)]
        self.document_ids = torch.zeros(batch_size, capacity, device=device, dtype=torch.long)
        self.positions = torch.zeros(batch_size, capacity, device=device, dtype=torch.long)
        self.filled = 0  # slots in use
        self.no_padding = True  # each sequence is known to be one document without padding

    @property
    def batch_size(self) -> int:
        """The number of sequences."""
        return self.document_ids.shape[0]

    @property
    def capacity(self) -> int:
        """The number of slots, filled or not."""
        return self.document_ids.shape[1]

    @property
    def num_bytes(self) -> int:
        """The memory of all keys and values."""
        return _count_bytes(self.keys, self.values)

    def next_positions(self, ids: Tensor, document_ids: Tensor | None) -> Tensor | None:
        """The positions of new tokens (B, T): each sequence continues after its last real token.

        None if the cache is empty and there is no padding: the default positions of `make_layout` apply.
        """
        if self.no_padding and document_ids is None:
            if self.filled == 0:
                return None
            return torch.arange(self.filled, self.filled + ids.shape[1], device=ids.device)[None]
        real = torch.ones_like(ids) if document_ids is None else (document_ids != 0).long()
        lengths = torch.where(self.document_ids != 0, self.positions + 1, 0).amax(dim=1, keepdim=True)  # (B, 1)
        return (lengths + real.cumsum(dim=1) - 1).clamp(min=0)

    def extend(self, layout: SequenceLayout) -> SequenceLayout:
        """Reserve slots for new tokens; returns the layout of all keys that attention will be shown."""
        new = layout.positions.shape[1]
        if self.filled + new > self.capacity:
            self._grow(max(2 * self.capacity, self.filled + new))
        self.filled += new
        self._write_layout(layout)
        self.no_padding = self.no_padding and layout.document_ids is None and len(layout.positions) == 1
        if self.no_padding and self.filled == new:
            return layout  # queries and keys are the same tokens
        if self.no_padding:
            return SequenceLayout(None, self.positions[:1, : self.filled])
        return SequenceLayout(self.document_ids[:, : self.filled], self.positions[:, : self.filled])

    def write(self, layer: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Store a layer's new keys and values (B, KV, T, D) in the reserved slots; returns all of that layer's."""
        all_keys, all_values = self.keys[layer], self.values[layer]
        self._write_slots(all_keys, 2, keys)
        self._write_slots(all_values, 2, values)
        return all_keys.narrow(2, 0, self.filled), all_values.narrow(2, 0, self.filled)

    def _write_layout(self, layout: SequenceLayout) -> None:
        document_ids = torch.ones_like(layout.positions) if layout.document_ids is None else layout.document_ids
        self._write_slots(self.document_ids, 1, document_ids.expand(self.batch_size, -1))
        self._write_slots(self.positions, 1, layout.positions.expand(self.batch_size, -1))

    def _write_slots(self, tensor: Tensor, dim: int, new: Tensor) -> None:
        count = new.shape[dim]
        tensor.narrow(dim, self.filled - count, count).copy_(new)

    def reorder(self, rows: Tensor, start: int = 0) -> None:
        """Sequence r continues what sequence `rows[r]` was: surviving beams replace the others.

        Slots before `start` must already hold the same in both, as the common prefix of beams does; they are not moved.
        """
        if len(rows) != self.batch_size:
            start = 0  # new sequences need their prefix too

        def moved(tensor: Tensor, dim: int) -> Tensor:
            part = tensor.narrow(dim, start, self.filled - start)
            chosen = part.index_select(0, rows)
            if len(rows) == len(tensor):
                part.copy_(chosen)
                return tensor
            resized = tensor.new_zeros(len(rows), *tensor.shape[1:])
            resized.narrow(dim, 0, self.filled).copy_(chosen)
            return resized

        self.keys = [moved(tensor, 2) for tensor in self.keys]
        self.values = [moved(tensor, 2) for tensor in self.values]
        self.document_ids, self.positions = moved(self.document_ids, 1), moved(self.positions, 1)

    def crop(self, filled: int) -> None:
        """Remove all slots from `filled` on, as when speculated tokens are rejected."""
        if not 0 <= filled <= self.filled:
            raise ValueError(f"cannot crop to {filled} slots: it must lie in 0 … {self.filled}")
        self.filled = filled
        self.document_ids[:, filled:] = 0

    def _grow(self, capacity: int) -> None:
        more = capacity - self.capacity
        self.keys = [pad(tensor, (0, 0, 0, more)) for tensor in self.keys]
        self.values = [pad(tensor, (0, 0, 0, more)) for tensor in self.values]
        self.document_ids, self.positions = pad(self.document_ids, (0, more)), pad(self.positions, (0, more))


class KeyValueProjection(Protocol):
    """What turns the encoder's output into keys and values: a block's cross-attention."""

    def keys_values(self, memory: Tensor) -> tuple[Tensor, Tensor]:
        """(B, S, C) → (B, KV, S, D), twice."""


class EncoderMemory:
    """The encoder's output. Each layer projects it when it runs, as training needs."""

    def __init__(self, vectors: Tensor, layout: SequenceLayout, hints: KernelHints = NO_HINTS) -> None:
        self.vectors = layout.zero_padding(vectors)  # (B, S, C)
        self.layout, self.hints = layout, hints

    @property
    def batch_size(self) -> int:
        """The number of sources."""
        return self.vectors.shape[0]

    def keys_values(self, layer: int, attention: KeyValueProjection) -> tuple[Tensor, Tensor]:
        """The keys and values (B, KV, S, D) of one layer."""
        return attention.keys_values(self.vectors)


class CrossCache:
    """The encoder's output as the keys and values of every layer, projected once, as decoding needs."""

    hints = NO_HINTS

    def __init__(self, keys: list[Tensor], values: list[Tensor], layout: SequenceLayout) -> None:
        self.keys = keys  # per layer (B, KV, S, D)
        self.values = values
        self.layout = layout

    @property
    def batch_size(self) -> int:
        """The number of sources."""
        return self.keys[0].shape[0]

    @property
    def num_bytes(self) -> int:
        """The memory of all keys and values."""
        return _count_bytes(self.keys, self.values)

    def keys_values(self, layer: int, attention: KeyValueProjection) -> tuple[Tensor, Tensor]:
        """The keys and values (B, KV, S, D) of one layer."""
        return self.keys[layer], self.values[layer]

    def select(self, rows: Tensor) -> "CrossCache":
        """These sources only."""
        document_ids, positions = self.layout
        document_ids = None if document_ids is None else document_ids[rows]
        positions = positions if len(positions) == 1 else positions[rows]
        keys, values = ([t.index_select(0, rows) for t in tensors] for tensors in (self.keys, self.values))
        return CrossCache(keys, values, SequenceLayout(document_ids, positions))


@dataclass
class LayerCache:
    """A self cache as one layer sees it."""

    cache: SelfCache
    layer: int

    def write(self, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Store new keys and values (B, KV, T, D); returns all of this layer's."""
        return self.cache.write(self.layer, keys, values)


@dataclass
class LayerSource:
    """The source as one layer sees it, and which of its tokens each query may attend to."""

    memory: EncoderMemory | CrossCache
    layer: int
    mask: PreparedMask

    def keys_values(self, attention: KeyValueProjection) -> tuple[Tensor, Tensor]:
        """The source's keys and values (B, KV, S, D)."""
        return self.memory.keys_values(self.layer, attention)


def _count_bytes(*tensors: list[Tensor]) -> int:
    return sum(t.numel() * t.element_size() for several in tensors for t in several)
