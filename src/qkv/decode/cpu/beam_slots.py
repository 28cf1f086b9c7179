"""Hypotheses side by side in one row of a growing cache, as `static_step` has them in a static one.

Each step every hypothesis of a row takes a slot. Who came by which slots is a mask: when hypotheses fork and die only
the mask moves, never a key or a value. Slots that only dead hypotheses came by are tidied away every few steps, so that
a row holds what hypotheses have in common once, and not much more. `SelfCache.reorder`, which moves everything every
time, stays the reference.

N rows of the cache, T hypotheses in each, S slots, KV key/value heads, D head width
"""

import torch
from torch import Tensor

from qkv.blocks import SelfCache, SequenceLayout

NEG_INF = float("-inf")
COMPACT_EVERY_STEPS = 8
"""After how many steps the cache is tidied up,"""
MAX_LIVE_FRACTION = 0.75
"""where at most this share of its slots is still seen."""


class BeamSlots:
    """From now on each row of a cache is `beams` hypotheses, which have all come by what it holds."""

    def __init__(self, cache: SelfCache, num_beams: int, dtype: torch.dtype) -> None:
        position = cache.next_positions(cache.document_ids[:, :1], None)
        assert position is not None, "a row forks when it has read its prompt"
        self.cache, self.num_beams = cache, num_beams
        self.next_positions = position  # (N, 1), or (1, 1) where all rows count alike: the position of the next token
        self.mask = torch.zeros(
            cache.batch_size, num_beams, cache.filled, dtype=dtype
        )  # (N, T, S) 0 for what it came by, or −∞
        self.mask.masked_fill_(cache.document_ids[:, None, : cache.filled] == 0, NEG_INF)
        self.steps = 0
        self.self_mask = torch.full((num_beams, num_beams), NEG_INF, dtype=dtype).fill_diagonal_(
            0.0
        )  # (T, T) of a step's own slots

    def advance(self) -> SequenceLayout:
        """One step on: where the newest tokens stand, (N or 1, T)."""
        self.mask = torch.cat([self.mask, self.self_mask.expand(self.cache.batch_size, -1, -1)], dim=2)
        place = SequenceLayout(None, self.next_positions.expand(-1, self.num_beams))
        self.next_positions = self.next_positions + 1
        self.steps += 1
        return place

    def reorder(self, rows: Tensor) -> None:
        """Hypothesis r of N · T goes on from what hypothesis `rows[r]` of the same row was; whole rows may leave."""
        parents = rows.view(-1, self.num_beams)  # (N, T)
        staying = parents[:, 0] // self.num_beams
        if len(staying) < self.cache.batch_size:
            self.cache.reorder(staying)
            self.mask = self.mask[staying]
            self.next_positions = self.next_positions if len(self.next_positions) == 1 else self.next_positions[staying]
        parent = (parents % self.num_beams)[:, :, None]
        self.mask = self.mask.gather(1, parent.expand(self.mask.shape))
        if self.steps % COMPACT_EVERY_STEPS == 0:
            self._compact()

    def _compact(self) -> None:
        """Keep only the slots that a hypothesis still sees; rows that have fewer are filled up with what none sees."""
        cache, seen = self.cache, (self.mask == 0).any(dim=1)  # (N, S)
        most = int(seen.sum(dim=1).max())
        if most > MAX_LIVE_FRACTION * cache.filled:
            return
        slots = seen.long().argsort(dim=1, descending=True, stable=True)[:, :most]  # (N, most), the seen ones in order
        rows, heads, length, width = cache.keys[0].shape
        first = length * torch.arange(rows * heads).view(rows, heads, 1)  # slots of a row and head lie together
        index = (first + slots[:, None]).flatten()  # (N · KV · most)
        for tensor in (*cache.keys, *cache.values):
            kept = tensor.reshape(-1, width).index_select(0, index)
            tensor[:, :, :most] = kept.view(rows, heads, most, width)
        for tensor in (cache.document_ids, cache.positions):
            tensor[:, :most] = tensor.gather(1, slots)
        cache.crop(most)
        self.next_positions = self.next_positions.expand(
            rows, 1
        )  # a slot may hold another position in each row: the cache is told so
        self.mask = self.mask.gather(2, slots[:, None].expand(-1, self.num_beams, -1))
