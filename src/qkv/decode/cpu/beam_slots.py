"""Store all beams of a prompt in one row of a growing cache. `gpu/static_runner.py` does the same in a static cache.

At each step every beam of a row writes one slot. A mask says which slots each beam attends to. When the search replaces
beams, only the mask is copied, and no keys or values are. Every few steps, slots that no beam attends to are removed.
So a row stores the common prefix of its beams only once. The reference is `reorder_cache`, which copies the keys and
values of the beams at every step. It skips the prefix that the replaced beams share with their replacements.

N rows of the cache, T beams in each, S slots, KV key/value heads, D head dim
"""

import torch
from torch import Tensor

from qkv.blocks import SelfCache, SequenceLayout
from qkv.decode.cache_edits import crop_cache, reorder_cache

NEG_INF = float("-inf")
COMPACT_EVERY_STEPS = 8
"""The number of steps after which unused slots may be removed again."""
MAX_USED_FRACTION = 0.75
"""Unused slots are removed only if at most this fraction of the slots is still used."""


class BeamSlots:
    """Lets each row of a cache hold `num_beams` beams. The beams share the slots that the row has at the start."""

    def __init__(self, cache: SelfCache, num_beams: int, dtype: torch.dtype) -> None:
        position = cache.next_positions(cache.document_ids[:, :1], None)
        assert position is not None, "beams start after the prompt was read"
        self.cache, self.num_beams = cache, num_beams
        self.next_positions = position  # (N, 1), or (1, 1) if all rows are at the same position
        self.mask = torch.zeros(cache.batch_size, num_beams, cache.filled, dtype=dtype)  # (N, T, S) 0 or −∞
        self.mask.masked_fill_(cache.document_ids[:, None, : cache.filled] == 0, NEG_INF)
        self.steps = 0
        # The mask of one step's new slots: each beam attends only to its own, (T, T).
        self.self_mask = torch.full((num_beams, num_beams), NEG_INF, dtype=dtype).fill_diagonal_(0.0)

    def advance(self) -> SequenceLayout:
        """Add the slots of one step. Returns the layout of the newest tokens, (N or 1, T)."""
        self.mask = torch.cat([self.mask, self.self_mask.expand(self.cache.batch_size, -1, -1)], dim=2)
        layout = SequenceLayout(None, self.next_positions.expand(-1, self.num_beams))
        self.next_positions = self.next_positions + 1
        self.steps += 1
        return layout

    def reorder(self, parents: Tensor) -> None:
        """Replace each beam i by beam `parents[i]`, which must be in the same row. `parents` may leave out whole rows.

        Beams are numbered over all rows, 0 to N·T − 1.
        """
        parents = parents.view(-1, self.num_beams)  # (N, T)
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
        """Keep only the slots that a beam attends to. All rows keep the same number, so some keep unused slots."""
        cache, is_used = self.cache, (self.mask == 0).any(dim=1)  # (N, S)
        num_kept = int(is_used.sum(dim=1).max())
        if num_kept > MAX_USED_FRACTION * cache.filled:
            return
        slots = is_used.long().argsort(dim=1, descending=True, stable=True)[:, :num_kept]  # in order, (N, num_kept)
        rows, heads, length, width = cache.keys[0].shape
        first = length * torch.arange(rows * heads).view(rows, heads, 1)  # the slots of a row and head are contiguous
        index = (first + slots[:, None]).flatten()  # (N · KV · num_kept)
        for tensor in (*cache.keys, *cache.values):
            kept = tensor.reshape(-1, width).index_select(0, index)
            tensor[:, :, :num_kept] = kept.view(rows, heads, num_kept, width)
        for tensor in (cache.document_ids, cache.positions):
            tensor[:, :num_kept] = tensor.gather(1, slots)
        crop_cache(cache, num_kept)
        # One next position per row (N, 1). With a single position for all rows, the cache would assume that a slot has
        # the same position in every row, which is no longer true.
        self.next_positions = self.next_positions.expand(rows, 1)
        self.mask = self.mask.gather(2, slots[:, None].expand(-1, self.num_beams, -1))
