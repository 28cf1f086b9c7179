"""Keys and values in pages: a sequence allocates pages as it grows, and sequences with the same prefix share them.

A page holds G tokens of one sequence, in all layers. Token p of a sequence is in slot p mod G of its page number p div
G, so that the position of a slot need not be stored. Page 0 is the null page: padding is written to it, and never read.

A full page is identified by its tokens and the page before it. A sequence that starts with the same tokens uses the
same pages without a copy, because full pages are never written again. A page without holders stays cached until it is
needed; then the page that was released first is evicted, and always before the page that it follows.

P pages, G slots in a page, R sequences, N pages of a sequence, L = N·G slots, T new tokens,
KV key/value heads, D head dim
"""

from collections import OrderedDict
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from qkv.blocks import SelfCache, SequenceLayout

NULL_PAGE = 0


@dataclass(eq=False)
class PrefixNode:
    """A full page in the tree of cached prefixes. A root has no page and no parent."""

    page: int = NULL_PAGE
    tokens: tuple[int, ...] = ()
    parent: "PrefixNode | None" = None
    num_holders: int = 0
    children: dict[tuple[int, ...], "PrefixNode"] = field(default_factory=dict)
    root_key: Hashable = None  # of a root: what else its keys depend on, such as the source


class PagePool:
    """All pages: which are free, which are in use, and which hold a prefix that can be reused."""

    def __init__(self, like: SelfCache, num_pages: int, page_size: int) -> None:
        """`num_pages` pages of `page_size` tokens, with the layers, heads and dtype of the cache `like`."""
        if num_pages < 1 or page_size < 1:
            raise ValueError(f"there must be at least one page of one token, not {num_pages} of {page_size}")
        one = like.keys[0]
        _, heads, _, width = one.shape
        shape = (2, len(like.keys), 1 + num_pages, page_size, heads, width)
        self._store = torch.zeros(shape, device=one.device, dtype=one.dtype)  # one tensor: one call zeroes a page
        self.keys, self.values = (list(half.unbind()) for half in self._store)
        self.num_pages, self.page_size = num_pages, page_size
        self.num_evicted = 0
        self._free = list(range(num_pages, NULL_PAGE, -1))
        self._unused: OrderedDict[int, PrefixNode] = OrderedDict()  # by page; the first one is evicted first
        self._roots: dict[Hashable, PrefixNode] = {}

    @property
    def num_free(self) -> int:
        """The number of pages without holders."""
        return len(self._free) + len(self._unused)

    @property
    def num_bytes(self) -> int:
        """The memory of all keys and values."""
        return self._store.numel() * self._store.element_size()

    def pages_for(self, num_tokens: int) -> int:
        """The number of pages that a number of tokens needs."""
        return -(-num_tokens // self.page_size)

    def allocate(self, num_pages: int) -> list[int]:
        """Allocate zeroed pages; the caller has checked that enough are free."""
        assert num_pages <= self.num_free
        while len(self._free) < num_pages:
            self._evict(next(iter(self._unused.values())))
            self.num_evicted += 1
        taken = [self._free.pop() for _ in range(num_pages)]
        if taken:
            # An unwritten slot has attention weight 0, and 0 times a NaN of an earlier sequence would be NaN.
            self._store.index_fill_(2, torch.tensor(taken, device=self._store.device), 0.0)
        return taken

    def free_pages(self, pages: Sequence[int]) -> None:
        """Free pages that `allocate` returned and `insert_prefix` did not take."""
        self._free += pages

    # ── Shared prefixes ──────────────────────────────────────────────────────────────────────────────────────────

    def match_prefix(self, root_key: Hashable, tokens: Sequence[int]) -> list[PrefixNode]:
        """The cached pages of a sequence's prefix; `root_key` is what else its keys depend on (its source)."""
        found: list[PrefixNode] = []
        here = self._roots.get(root_key)
        for first in range(0, len(tokens) - self.page_size + 1, self.page_size):
            here = None if here is None else here.children.get(tuple(tokens[first : first + self.page_size]))
            if here is None:
                break
            found.append(here)
        return found

    def insert_prefix(
        self, root_key: Hashable, parent: PrefixNode | None, tokens: tuple[int, ...], page: int
    ) -> PrefixNode | None:
        """Add a full page, which stays held; returns None if another page is cached for the same tokens."""
        if parent is None:
            parent = self._roots.setdefault(root_key, PrefixNode(root_key=root_key))
        if tokens in parent.children:
            return None
        parent.children[tokens] = PrefixNode(page, tokens, parent, num_holders=1)
        return parent.children[tokens]

    def retain(self, nodes: Sequence[PrefixNode]) -> None:
        """Add a holder to each page."""
        for one in nodes:
            one.num_holders += 1
            self._unused.pop(one.page, None)

    def release(self, nodes: Sequence[PrefixNode]) -> None:
        """Remove a holder from each page; pages without holders stay cached until they are evicted."""
        for one in reversed(nodes):  # later pages of a sequence are evicted earlier
            one.num_holders -= 1
            assert one.num_holders >= 0
            if not one.num_holders:
                self._unused[one.page] = one

    def evict_unused(self) -> None:
        """Evict every prefix without holders."""
        while self._unused:
            self._evict(next(iter(self._unused.values())))

    def _evict(self, node: PrefixNode) -> None:
        assert node.parent is not None
        assert not node.children, "a page is evicted before the one that it follows"
        del self._unused[node.page]
        del node.parent.children[node.tokens]
        self._free.append(node.page)
        if node.parent.parent is None and not node.parent.children:
            del self._roots[node.parent.root_key]


def pad_page_tables(tables: Sequence[Sequence[int]], num_pages: int) -> list[list[int]]:
    """Page tables, padded to one length with the null page.

    >>> pad_page_tables([[4, 2], [7]], 3)
    [[4, 2, 0], [7, 0, 0]]
    """
    return [[*table, *[NULL_PAGE] * (num_pages - len(table))] for table in tables]


class PagedCache:
    """The pages of one batch, with the methods of `SelfCache` that a stack calls.

    `page_tables` (R, N) lists the pages of each sequence, enough for its cached and its new tokens, then the null page;
    `lengths` (R,) counts the cached tokens.
    """

    def __init__(self, page_pool: PagePool, page_tables: Tensor, lengths: Tensor) -> None:
        self.page_pool, self.page_tables, self.lengths = page_pool, page_tables, lengths
        self._slots = torch.zeros(0, device=page_tables.device, dtype=torch.long)
        num_slots = page_tables.shape[1] * page_pool.page_size
        self._shown = torch.arange(num_slots, device=page_tables.device)[None]  # (1, L)

    @classmethod
    def from_page_tables(
        cls, page_pool: PagePool, page_tables: Sequence[Sequence[int]], lengths: Sequence[int]
    ) -> "PagedCache":
        """From page tables of unequal length."""
        device = page_pool.keys[0].device
        laid = torch.tensor(pad_page_tables(page_tables, max(map(len, page_tables))), device=device)
        return cls(page_pool, laid, torch.tensor(lengths, device=device))

    @property
    def batch_size(self) -> int:
        """The number of sequences in the batch."""
        return self.page_tables.shape[0]

    @property
    def capacity(self) -> int:
        """The number of slots."""
        return self._shown.shape[1]

    def next_positions(self, ids: Tensor, segment: Tensor | None) -> Tensor:
        """Positions of new tokens (R, T), counted on from the last token of each sequence."""
        real = torch.ones_like(ids) if segment is None else (segment != 0).long()
        return (self.lengths[:, None] + real.cumsum(dim=1) - 1).clamp(min=0)

    def reserve(self, place: SequenceLayout) -> SequenceLayout:
        """Take slots for new tokens; returns the places of all keys that attention will be shown."""
        position = place.positions.expand(self.batch_size, -1)  # (R, T)
        size = self.page_pool.page_size
        slots = self.page_tables.gather(1, position // size) * size + position % size
        newest = position + 1
        if place.document_ids is not None:
            # Padding is written to the null page.
            slots = torch.where(place.document_ids != 0, slots, NULL_PAGE)
            newest = torch.where(place.document_ids != 0, newest, 0)
        self._slots = slots.flatten()
        self.lengths = torch.maximum(self.lengths, newest.amax(dim=1))
        return SequenceLayout((self._shown < self.lengths[:, None]).long(), self._shown)

    def write(self, layer: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Store one layer's new keys and values (R, KV, T, D) in the slots taken; returns all of that layer's."""
        return self._write(self.page_pool.keys[layer], keys), self._write(self.page_pool.values[layer], values)

    def _write(self, store: Tensor, new: Tensor) -> Tensor:
        flat = store.view(-1, *store.shape[2:])  # (P·G, KV, D)
        flat.index_copy_(0, self._slots, new.transpose(1, 2).flatten(0, 1).to(store.dtype))
        # (R·N, G, KV, D): on a CPU much faster than store[page_tables]
        shown = store.index_select(0, self.page_tables.flatten())
        return shown.view(self.batch_size, -1, *store.shape[2:]).transpose(1, 2)  # (R, KV, L, D)
