"""What decoding remembers, owned by the caller: a stack's own keys and values, and those of the source.

    cache = model.new_cache(rows=8, length=256)
    model(ids, cache=cache)           # writes the keys and values of `ids`, sees everything written before

A self cache grows; a cross cache is filled once from the encoder's output and never copied per beam: beams of one
source are more queries against the same keys. Every slot keeps the segment and position of its token, so that the
mask rule needs no special case for caching: an empty slot has segment 0.

R rows, L slots, S source tokens, KV key/value heads, D head width
"""

from typing import Protocol

import torch
from torch import Tensor

from qkv.blocks.mask import SequenceLayout


class SelfCache:
    """Keys and values of the tokens so far, per layer, in slots that all rows fill in step.

    A growing cache (`static=False`) shows attention the filled slots alone and makes room when it is full. A static
    one keeps every shape and address for good and counts on the device, as CUDA graphs and compiled steps need; it
    shows all its slots, and the mask hides the empty ones.
    """

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
        static: bool = False,
    ) -> None:
        if capacity < 1 or batch_size < 1:
            raise ValueError(f"a cache needs at least one row and one slot, not {batch_size} and {capacity}")
        shape = (batch_size, kv_heads, capacity, head_dim)
        self.static = static
        self.keys = [torch.zeros(shape, device=device, dtype=dtype) for _ in range(layers)]
        self.values = [torch.zeros(shape, device=device, dtype=dtype) for _ in range(layers)]
        self.document_ids = torch.zeros(batch_size, capacity, device=device, dtype=torch.long)
        self.positions = torch.zeros(batch_size, capacity, device=device, dtype=torch.long)
        self.filled = 0  # slots in use; a static cache counts in `cursor` instead
        self.no_padding = not static  # whether all rows hold one document without padding, so that a mask needs no look
        self.cursor = torch.zeros((), device=device, dtype=torch.long)
        self._slots = torch.zeros(0, device=device, dtype=torch.long)

    @property
    def batch_size(self) -> int:
        return self.document_ids.shape[0]

    @property
    def capacity(self) -> int:
        """How many slots there are, filled or not."""
        return self.document_ids.shape[1]

    @property
    def num_bytes(self) -> int:
        """The memory of all keys and values."""
        return sum(t.numel() * t.element_size() for t in (*self.keys, *self.values))

    def next_positions(self, ids: Tensor, document_ids: Tensor | None) -> Tensor | None:
        """Positions of new tokens (R, T): each row counts on from its last real token.

        None where whole rows are the first that the cache sees: they count for themselves, and need no mask in memory.
        """
        if self.no_padding and document_ids is None:
            if self.filled == 0:
                return None
            return torch.arange(self.filled, self.filled + ids.shape[1], device=ids.device)[None]
        real = torch.ones_like(ids) if document_ids is None else (document_ids != 0).long()
        seen = torch.where(self.document_ids != 0, self.positions + 1, 0).amax(dim=1, keepdim=True)  # (R, 1)
        return (seen + real.cumsum(dim=1) - 1).clamp(min=0)

    def extend(self, layout: SequenceLayout) -> SequenceLayout:
        """Take slots for new tokens; returns the places of all keys that attention will be shown."""
        new = layout.positions.shape[1]
        if self.static:
            # The count is on the device, and so is its check: it waits for nothing and may stand in a CUDA graph.
            full = f"a static cache of {self.capacity} slots is full; make one that is long enough for the whole text"
            if new > self.capacity:
                raise ValueError(f"{new} tokens: {full}")
            torch._assert_async(self.cursor + new <= self.capacity, full)
            self._slots = self.cursor + torch.arange(new, device=self.cursor.device)
            self.cursor += new
        else:
            if self.filled + new > self.capacity:
                self._grow(max(2 * self.capacity, self.filled + new))
            self.filled += new
        segment = torch.ones_like(layout.positions) if layout.document_ids is None else layout.document_ids
        self._write_slots(self.document_ids, 1, segment.expand(self.batch_size, -1))
        self._write_slots(self.positions, 1, layout.positions.expand(self.batch_size, -1))
        self.no_padding = self.no_padding and layout.document_ids is None and len(layout.positions) == 1
        if self.static:
            return SequenceLayout(self.document_ids, self.positions)
        if self.no_padding and self.filled == new:
            return layout  # queries and keys are the same tokens
        if self.no_padding:
            return SequenceLayout(None, self.positions[:1, : self.filled])
        return SequenceLayout(self.document_ids[:, : self.filled], self.positions[:, : self.filled])

    def write(self, layer: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Store one layer's new keys and values (R, KV, T, D) in the slots taken; returns all of that layer's."""
        all_keys, all_values = self.keys[layer], self.values[layer]
        self._write_slots(all_keys, 2, keys)
        self._write_slots(all_values, 2, values)
        if self.static:
            return all_keys, all_values
        return all_keys.narrow(2, 0, self.filled), all_values.narrow(2, 0, self.filled)

    def _write_slots(self, tensor: Tensor, dim: int, new: Tensor) -> None:
        """Write to the slots taken; a growing cache knows where they are without a look at the device."""
        if self.static:
            tensor.index_copy_(dim, self._slots, new.to(tensor.dtype))
        else:
            count = new.shape[dim]
            tensor.narrow(dim, self.filled - count, count).copy_(new)

    def reorder(self, rows: Tensor, start: int = 0) -> None:
        """Row r continues what row `rows[r]` was: beams that survive replace those that do not.

        Slots before `since` are known to hold the same in both, as the common beginning of beams does: they stay.
        """
        last = self.capacity if self.static else self.filled
        if len(rows) != self.batch_size:
            if self.static:
                raise ValueError(
                    f"a static cache keeps its {self.batch_size} rows; it cannot be reordered to {len(rows)}"
                )
            start = 0  # new rows need their beginning too

        def moved(tensor: Tensor, dim: int) -> Tensor:
            part = tensor.narrow(dim, start, last - start)
            chosen = part.index_select(0, rows)
            if self.static or len(rows) == len(tensor):
                part.copy_(chosen)
                return tensor
            room = tensor.new_zeros(len(rows), *tensor.shape[1:])
            room.narrow(dim, 0, last).copy_(chosen)
            return room

        self.keys = [moved(tensor, 2) for tensor in self.keys]
        self.values = [moved(tensor, 2) for tensor in self.values]
        self.document_ids, self.positions = moved(self.document_ids, 1), moved(self.positions, 1)

    def crop(self, filled: int) -> None:
        """Forget all slots from `filled` on, as when guessed tokens are taken back."""
        most = self.capacity if self.static else self.filled
        if not 0 <= filled <= most:
            raise ValueError(f"cannot crop to {filled} slots: it must lie in 0 … {most}")
        if self.static:
            self.cursor.fill_(filled)
        else:
            self.filled = filled
        self.document_ids[:, filled:] = 0

    def _grow(self, capacity: int) -> None:
        more = capacity - self.capacity
        self.keys = [torch.nn.functional.pad(t, (0, 0, 0, more)) for t in self.keys]
        self.values = [torch.nn.functional.pad(t, (0, 0, 0, more)) for t in self.values]
        self.document_ids = torch.nn.functional.pad(self.document_ids, (0, more))
        self.positions = torch.nn.functional.pad(self.positions, (0, more))


class KeyValueProjection(Protocol):
    """What turns the encoder's output into keys and values: a block's cross-attention."""

    def keys_values(self, memory: Tensor) -> tuple[Tensor, Tensor]: ...


class EncoderMemory:
    """The encoder's output, projected by each layer as it passes: what training uses."""

    def __init__(self, vectors: Tensor, layout: SequenceLayout) -> None:
        self.vectors = layout.zero_padding(vectors)  # (R, S, C)
        self.layout = layout

    @property
    def batch_size(self) -> int:
        return self.vectors.shape[0]

    def keys_values(self, layer: int, attention: KeyValueProjection) -> tuple[Tensor, Tensor]:
        return attention.keys_values(self.vectors)


class CrossCache:
    """The encoder's output as every layer's keys and values, projected once: what decoding uses."""

    def __init__(self, keys: list[Tensor], values: list[Tensor], layout: SequenceLayout) -> None:
        self.keys = keys  # per layer (R, KV, S, D)
        self.values = values
        self.layout = layout

    @property
    def batch_size(self) -> int:
        return self.keys[0].shape[0]

    @property
    def num_bytes(self) -> int:
        return sum(t.numel() * t.element_size() for t in (*self.keys, *self.values))

    def keys_values(self, layer: int, attention: KeyValueProjection) -> tuple[Tensor, Tensor]:
        return self.keys[layer], self.values[layer]

    def select(self, rows: Tensor) -> "CrossCache":
        """These sources alone."""
        place = self.layout
        segment = None if place.document_ids is None else place.document_ids[rows]
        position = place.positions if len(place.positions) == 1 else place.positions[rows]
        keys, values = ([t.index_select(0, rows) for t in tensors] for tensors in (self.keys, self.values))
        return CrossCache(keys, values, SequenceLayout(segment, position, place.most))
