"""A self cache whose shapes and addresses never change, as CUDA graphs and compiled decoding steps need."""

from typing import Any

import torch
from torch import Tensor

from qkv.blocks.cache import SelfCache
from qkv.blocks.mask import SequenceLayout


class StaticCache(SelfCache):
    """It counts its slots on the device and shows attention all of them; the mask hides the empty ones."""

    is_static = True

    def __init__(self, *size: int, **options: Any) -> None:
        super().__init__(*size, **options)
        self.no_padding = False
        self.cursor = torch.zeros((), device=self.document_ids.device, dtype=torch.long)  # slots in use
        self._slots = torch.zeros(0, device=self.document_ids.device, dtype=torch.long)

    def extend(self, layout: SequenceLayout) -> SequenceLayout:
        """Reserve slots for new tokens; returns the layout of all slots.

        The check that they fit runs on the device, too: it needs no synchronisation and can be in a CUDA graph.
        """
        new = layout.positions.shape[1]
        full = f"the static cache of {self.capacity} slots is full; make one for the whole text"
        if new > self.capacity:
            raise ValueError(f"{new} tokens: {full}")
        torch._assert_async(self.cursor + new <= self.capacity, full)
        self._slots = self.cursor + torch.arange(new, device=self.cursor.device)
        self.cursor += new
        self._write_layout(layout)
        return SequenceLayout(self.document_ids, self.positions)

    def write(self, layer: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Store a layer's new keys and values (B, KV, T, D) in the reserved slots; returns all slots."""
        self._write_slots(self.keys[layer], 2, keys)
        self._write_slots(self.values[layer], 2, values)
        return self.keys[layer], self.values[layer]

    def _write_slots(self, tensor: Tensor, dim: int, new: Tensor) -> None:
        tensor.index_copy_(dim, self._slots, new.to(tensor.dtype))

    def reorder(self, rows: Tensor, start: int = 0) -> None:
        """Sequence r continues what sequence `rows[r]` was; slots before `start` are not moved."""
        if len(rows) != self.batch_size:
            raise ValueError(
                f"cannot reorder to {len(rows)} sequences: a static cache keeps its batch size {self.batch_size}"
            )
        for tensor, dim in [*((t, 2) for t in (*self.keys, *self.values)), (self.document_ids, 1), (self.positions, 1)]:
            part = tensor.narrow(dim, start, self.capacity - start)
            part.copy_(part.index_select(0, rows))

    def crop(self, filled: int) -> None:
        """Remove all slots from `filled` on."""
        if not 0 <= filled <= self.capacity:
            raise ValueError(f"cannot crop to {filled} slots: it must lie in 0 … {self.capacity}")
        self.cursor.fill_(filled)
        self.document_ids[:, filled:] = 0
