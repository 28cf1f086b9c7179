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

from qkv.blocks.mask import Place


class SelfCache:
    """Keys and values of the tokens so far, per layer, in slots that all rows fill in step.

    A growing cache (`static=False`) shows attention the filled slots alone and makes room when it is full. A static
    one keeps every shape and address for good and counts on the device, as CUDA graphs and compiled steps need; it
    shows all its slots, and the mask hides the empty ones.
    """

    def __init__(
        self,
        layers: int,
        rows: int,
        kv_heads: int,
        length: int,
        head_width: int,
        *,
        device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.float32,
        static: bool = False,
    ) -> None:
        if length < 1 or rows < 1:
            raise ValueError(f"a cache needs at least one row and one slot, not {rows} and {length}")
        shape = (rows, kv_heads, length, head_width)
        self.static = static
        self.keys = [torch.zeros(shape, device=device, dtype=dtype) for _ in range(layers)]
        self.values = [torch.zeros(shape, device=device, dtype=dtype) for _ in range(layers)]
        self.segment = torch.zeros(rows, length, device=device, dtype=torch.long)
        self.position = torch.zeros(rows, length, device=device, dtype=torch.long)
        self.filled = 0  # slots in use; a static cache counts in `cursor` instead
        self.uniform = not static  # whether all rows hold one document without padding, so that a mask needs no look
        self.cursor = torch.zeros((), device=device, dtype=torch.long)
        self._slots = torch.zeros(0, device=device, dtype=torch.long)

    @property
    def rows(self) -> int:
        return self.segment.shape[0]

    @property
    def length(self) -> int:
        """How many slots there are, filled or not."""
        return self.segment.shape[1]

    @property
    def bytes(self) -> int:
        """The memory of all keys and values."""
        return sum(t.numel() * t.element_size() for t in (*self.keys, *self.values))

    def next_positions(self, ids: Tensor, segment: Tensor | None) -> Tensor | None:
        """Positions of new tokens (R, T): each row counts on from its last real token.

        None where whole rows are the first that the cache sees: they count for themselves, and need no mask in memory.
        """
        if self.uniform and segment is None:
            if self.filled == 0:
                return None
            return torch.arange(self.filled, self.filled + ids.shape[1], device=ids.device)[None]
        real = torch.ones_like(ids) if segment is None else (segment != 0).long()
        seen = torch.where(self.segment != 0, self.position + 1, 0).amax(dim=1, keepdim=True)  # (R, 1)
        return (seen + real.cumsum(dim=1) - 1).clamp(min=0)

    def extend(self, place: Place) -> Place:
        """Take slots for new tokens; returns the places of all keys that attention will be shown."""
        new = place.position.shape[1]
        if self.static:
            # The count is on the device, and so is its check: it waits for nothing and may stand in a CUDA graph.
            full = f"a static cache of {self.length} slots is full; make one that is long enough for the whole text"
            if new > self.length:
                raise ValueError(f"{new} tokens: {full}")
            torch._assert_async(self.cursor + new <= self.length, full)
            self._slots = self.cursor + torch.arange(new, device=self.cursor.device)
            self.cursor += new
        else:
            if self.filled + new > self.length:
                self._grow(max(2 * self.length, self.filled + new))
            self.filled += new
        segment = torch.ones_like(place.position) if place.segment is None else place.segment
        self._put(self.segment, 1, segment.expand(self.rows, -1))
        self._put(self.position, 1, place.position.expand(self.rows, -1))
        self.uniform = self.uniform and place.segment is None and len(place.position) == 1
        if self.static:
            return Place(self.segment, self.position)
        if self.uniform and self.filled == new:
            return place  # queries and keys are the same tokens
        if self.uniform:
            return Place(None, self.position[:1, : self.filled])
        return Place(self.segment[:, : self.filled], self.position[:, : self.filled])

    def write(self, layer: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Store one layer's new keys and values (R, KV, T, D) in the slots taken; returns all of that layer's."""
        all_keys, all_values = self.keys[layer], self.values[layer]
        self._put(all_keys, 2, keys)
        self._put(all_values, 2, values)
        if self.static:
            return all_keys, all_values
        return all_keys.narrow(2, 0, self.filled), all_values.narrow(2, 0, self.filled)

    def _put(self, tensor: Tensor, dim: int, new: Tensor) -> None:
        """Write to the slots taken; a growing cache knows where they are without a look at the device."""
        if self.static:
            tensor.index_copy_(dim, self._slots, new.to(tensor.dtype))
        else:
            count = new.shape[dim]
            tensor.narrow(dim, self.filled - count, count).copy_(new)

    def reorder(self, rows: Tensor, since: int = 0) -> None:
        """Row r continues what row `rows[r]` was: beams that survive replace those that do not.

        Slots before `since` are known to hold the same in both, as the common beginning of beams does: they stay.
        """
        last = self.length if self.static else self.filled
        if len(rows) != self.rows:
            if self.static:
                raise ValueError(f"a static cache keeps its {self.rows} rows; it cannot be reordered to {len(rows)}")
            since = 0  # new rows need their beginning too

        def moved(tensor: Tensor, dim: int) -> Tensor:
            part = tensor.narrow(dim, since, last - since)
            chosen = part.index_select(0, rows)
            if self.static or len(rows) == len(tensor):
                part.copy_(chosen)
                return tensor
            room = tensor.new_zeros(len(rows), *tensor.shape[1:])
            room.narrow(dim, 0, last).copy_(chosen)
            return room

        self.keys = [moved(tensor, 2) for tensor in self.keys]
        self.values = [moved(tensor, 2) for tensor in self.values]
        self.segment, self.position = moved(self.segment, 1), moved(self.position, 1)

    def crop(self, filled: int) -> None:
        """Forget all slots from `filled` on, as when guessed tokens are taken back."""
        most = self.length if self.static else self.filled
        if not 0 <= filled <= most:
            raise ValueError(f"cannot crop to {filled} slots: it must lie in 0 … {most}")
        if self.static:
            self.cursor.fill_(filled)
        else:
            self.filled = filled
        self.segment[:, filled:] = 0

    def _grow(self, length: int) -> None:
        more = length - self.length
        self.keys = [torch.nn.functional.pad(t, (0, 0, 0, more)) for t in self.keys]
        self.values = [torch.nn.functional.pad(t, (0, 0, 0, more)) for t in self.values]
        self.segment = torch.nn.functional.pad(self.segment, (0, more))
        self.position = torch.nn.functional.pad(self.position, (0, more))


class ProjectsMemory(Protocol):
    """What turns the encoder's output into keys and values: a block's cross-attention."""

    def keys_values(self, memory: Tensor) -> tuple[Tensor, Tensor]: ...


class Memory:
    """The encoder's output, projected by each layer as it passes: what training uses."""

    def __init__(self, vectors: Tensor, place: Place) -> None:
        self.vectors = place.blank(vectors)  # (R, S, C)
        self.place = place

    @property
    def rows(self) -> int:
        return self.vectors.shape[0]

    def keys_values(self, layer: int, attention: ProjectsMemory) -> tuple[Tensor, Tensor]:
        return attention.keys_values(self.vectors)


class CrossCache:
    """The encoder's output as every layer's keys and values, projected once: what decoding uses."""

    def __init__(self, keys: list[Tensor], values: list[Tensor], place: Place) -> None:
        self.keys = keys  # per layer (R, KV, S, D)
        self.values = values
        self.place = place

    @property
    def rows(self) -> int:
        return self.keys[0].shape[0]

    @property
    def bytes(self) -> int:
        return sum(t.numel() * t.element_size() for t in (*self.keys, *self.values))

    def keys_values(self, layer: int, attention: ProjectsMemory) -> tuple[Tensor, Tensor]:
        return self.keys[layer], self.values[layer]

    def of(self, rows: Tensor) -> "CrossCache":
        """These sources alone."""
        place = self.place
        segment = None if place.segment is None else place.segment[rows]
        position = place.position if len(place.position) == 1 else place.position[rows]
        keys, values = ([t.index_select(0, rows) for t in tensors] for tensors in (self.keys, self.values))
        return CrossCache(keys, values, Place(segment, position, place.most))
