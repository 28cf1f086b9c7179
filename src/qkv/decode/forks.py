"""Hypotheses side by side in one row of a growing cache, as `static_step` has them in a static one.

Each step every hypothesis of a row takes a slot. Who came by which slots is a mask: when hypotheses fork and die only
the mask moves, never a key or a value. Slots that only dead hypotheses came by are tidied away every few steps, so that
a row holds what hypotheses have in common once, and not much more. `SelfCache.reorder`, which moves everything every
time, stays the reference.

N rows of the cache, T hypotheses in each, S slots, KV key/value heads, D head width
"""

import torch
from torch import Tensor

from qkv.blocks import Place, SelfCache

NEVER = float("-inf")
TIDY = 8
"""After how many steps the cache is tidied up,"""
WORTH = 0.75
"""where at most this share of its slots is still seen."""


class Forks:
    """From now on each row of a cache is `beams` hypotheses, which have all come by what it holds."""

    def __init__(self, cache: SelfCache, beams: int, dtype: torch.dtype) -> None:
        position = cache.next_positions(cache.segment[:, :1], None)
        assert position is not None, "a row forks when it has read its prompt"
        self.cache, self.beams = cache, beams
        self.next = position  # (N, 1), or (1, 1) where all rows count alike: the position of the next token
        self.sight = torch.zeros(cache.rows, beams, cache.filled, dtype=dtype)  # (N, T, S) 0 for what it came by, or −∞
        self.sight.masked_fill_(cache.segment[:, None, : cache.filled] == 0, NEVER)
        self.steps = 0
        self.itself = torch.full((beams, beams), NEVER, dtype=dtype).fill_diagonal_(0.0)  # (T, T) of a step's own slots

    def advance(self) -> Place:
        """One step on: where the newest tokens stand, (N or 1, T)."""
        self.sight = torch.cat([self.sight, self.itself.expand(self.cache.rows, -1, -1)], dim=2)
        place = Place(None, self.next.expand(-1, self.beams))
        self.next = self.next + 1
        self.steps += 1
        return place

    def reorder(self, rows: Tensor) -> None:
        """Hypothesis r of N · T goes on from what hypothesis `rows[r]` of the same row was; whole rows may leave."""
        parents = rows.view(-1, self.beams)  # (N, T)
        staying = parents[:, 0] // self.beams
        if len(staying) < self.cache.rows:
            self.cache.reorder(staying)
            self.sight = self.sight[staying]
            self.next = self.next if len(self.next) == 1 else self.next[staying]
        parent = (parents % self.beams)[:, :, None]
        self.sight = self.sight.gather(1, parent.expand(self.sight.shape))
        if self.steps % TIDY == 0:
            self._tidy()

    def _tidy(self) -> None:
        """Keep only the slots that a hypothesis still sees; rows that have fewer are filled up with what none sees."""
        cache, seen = self.cache, (self.sight == 0).any(dim=1)  # (N, S)
        most = int(seen.sum(dim=1).max())
        if most > WORTH * cache.filled:
            return
        slots = seen.long().argsort(dim=1, descending=True, stable=True)[:, :most]  # (N, most), the seen ones in order
        rows, heads, length, width = cache.keys[0].shape
        first = length * torch.arange(rows * heads).view(rows, heads, 1)  # slots of a row and head lie together
        index = (first + slots[:, None]).flatten()  # (N · KV · most)
        for tensor in (*cache.keys, *cache.values):
            kept = tensor.reshape(-1, width).index_select(0, index)
            tensor[:, :, :most] = kept.view(rows, heads, most, width)
        for tensor in (cache.segment, cache.position):
            tensor[:, :most] = tensor.gather(1, slots)
        cache.crop(most)
        self.next = self.next.expand(rows, 1)  # a slot may hold another position in each row: the cache is told so
        self.sight = self.sight.gather(2, slots[:, None].expand(-1, self.beams, -1))
