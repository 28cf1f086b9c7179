"""Beams side by side in one row of a growing cache, as `gpu/static_runner.py` has them in a static one.

At each step every beam of a row takes a slot. A mask says which slots each beam attends to. When the search replaces
beams, only the mask is copied, never a key or a value. Slots that no beam attends to any more are removed every few
steps, so that a row stores the common part of its beams once, and little more. `reorder_cache`, which copies
everything every time, is the reference.

N rows of the cache, T beams in each, S slots, KV key/value heads, D head dim
"""

import torch
from torch import Tensor

from qkv.blocks import SelfCache, SequenceLayout
from qkv.decode.cache_edits import crop_cache, reorder_cache

NEG_INF = float("-inf")
COMPACT_EVERY_STEPS = 8
"""Unused slots are removed once in this number of steps,"""
MAX_LIVE_FRACTION = 0.75
"""if at most this fraction of the slots is still used."""


class BeamSlots:
    """From now on each row of a cache holds `num_beams` beams, which share what it holds now."""

    def __init__(self, cache: SelfCache, num_beams: int, dtype: torch.dtype) -> None:
        position = cache.next_positions(cache.document_ids[:, :1], None)
        assert position is not None, "beams start after the prompt was read"
        self.cache, self.num_beams = cache, num_beams
        self.next_positions = position  # (N, 1), or (1, 1) if all rows are at the same position
        self.mask = torch.zeros(cache.batch_size, num_beams, cache.filled, dtype=dtype)  # (N, T, S) 0 or −∞
        self.mask.masked_fill_(cache.document_ids[:, None, : cache.filled] == 0, NEG_INF)
        self.steps = 0
        self.self_mask = torch.full((num_beams, num_beams), NEG_INF, dtype=dtype).fill_diagonal_(
            0.0
        )  # (T, T) for the slots of one step

    def advance(self) -> SequenceLayout:
        """Add the slots of one step; returns the layout of the newest tokens, (N or 1, T)."""
        self.mask = torch.cat([self.mask, self.self_mask.expand(self.cache.batch_size, -1, -1)], dim=2)
        place = SequenceLayout(None, self.next_positions.expand(-1, self.num_beams))
        self.next_positions = self.next_positions + 1
        self.steps += 1
        return place

    def reorder(self, rows: Tensor) -> None:
        """Beam r of N · T continues beam `rows[r]` of the same row; whole rows may leave."""
        parents = rows.view(-1, self.num_beams)  # (N, T)
        staying = parents[:, 0] // self.num_beams
        if len(staying) < self.cache.batch_size:
            reorder_cache(self.cache, staying)
            self.mask = self.mask[staying]
            self.next_positions = self.next_positions if len(self.next_positions) == 1 else self.next_positions[staying]
        parent = (parents % self.num_beams)[:, :, None]
        self.mask = self.mask.gather(1, parent.expand(self.mask.shape))
        if self.steps % COMPACT_EVERY_STEPS == 0:
            self._compact()

    def _compact(self) -> None:
        """Keep only the slots that a beam still attends to; rows with fewer of them are padded with unused slots."""
        cache, seen = self.cache, (self.mask == 0).any(dim=1)  # (N, S)
        most = int(seen.sum(dim=1).max())
        if most > MAX_LIVE_FRACTION * cache.filled:
            return
        slots = seen.long().argsort(dim=1, descending=True, stable=True)[:, :most]  # (N, most), the used slots in order
        rows, heads, length, width = cache.keys[0].shape
        first = length * torch.arange(rows * heads).view(rows, heads, 1)  # slots of a row and head are contiguous
        index = (first + slots[:, None]).flatten()  # (N · KV · most)
        for tensor in (*cache.keys, *cache.values):
            kept = tensor.reshape(-1, width).index_select(0, index)
            tensor[:, :, :most] = kept.view(rows, heads, most, width)
        for tensor in (cache.document_ids, cache.positions):
            tensor[:, :most] = tensor.gather(1, slots)
        crop_cache(cache, most)
        self.next_positions = self.next_positions.expand(rows, 1)  # a slot may hold another position in each row
        self.mask = self.mask.gather(2, slots[:, None].expand(-1, self.num_beams, -1))
