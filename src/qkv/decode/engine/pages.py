"""A paged key/value cache: a sequence allocates pages as it grows, and sequences with the same prefix share pages.

A page holds the keys and values of G tokens of one sequence, in all layers. Token p of a sequence is in slot p mod G of
its page number p div G, so that the position of a slot need not be stored, unless tokens of a payload share a position.
Page 0 is the null page. Padding is written to it, and it fills up short page tables. Attention reads it there, but a
mask hides it.

A full page is identified by its tokens and the page before it. A sequence that starts with the same tokens uses the
same pages without a copy, because full pages are never written again. The holders of a page are the requests that use
it. A page without holders stays cached. When no free page is left, the cached page that was released first is evicted.
A sequence releases its last page first, so that a page is never evicted before the pages that follow it.

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
    root_key: Hashable = None  # for a root: the source, because the keys of an encoder-decoder depend on it


class PagePool:
    """All pages. It knows which pages are free, which are in use, and which are cached for reuse."""

    def __init__(self, like: SelfCache, num_pages: int, page_size: int) -> None:
        """`num_pages` pages of `page_size` tokens, with the layers, heads and dtype of the cache `like`."""
        if num_pages < 1 or page_size < 1:
            raise ValueError(f"num_pages = {num_pages}, page_size = {page_size}: both must be at least 1")
        one = like.keys[0]
        _, heads, _, width = one.shape
        shape = (2, len(like.keys), 1 + num_pages, page_size, heads, width)
        # All layers are in one tensor, so that one call can zero a page in all of them.
        self._store = torch.zeros(shape, device=one.device, dtype=one.dtype)
        self.keys, self.values = (list(half.unbind()) for half in self._store)
        self.num_pages, self.page_size = num_pages, page_size
        self.num_evicted = 0
        self._free = list(range(num_pages, NULL_PAGE, -1))
        self._new_pages: list[int] = []  # allocated, but not yet filled with zeros
        self._unused: OrderedDict[int, PrefixNode] = OrderedDict()  # by page number, in the order of eviction
        self._roots: dict[Hashable, PrefixNode] = {}

    @property
    def num_available(self) -> int:
        """The number of pages without holders: free or cached."""
        return len(self._free) + len(self._unused)

    @property
    def num_bytes(self) -> int:
        """The size of all keys and values in bytes."""
        return self._store.numel() * self._store.element_size()

    def pages_for(self, num_tokens: int) -> int:
        """Return the number of pages that `num_tokens` tokens need."""
        return -(-num_tokens // self.page_size)

    def allocate(self, num_pages: int) -> list[int]:
        """Allocate pages. The caller has checked that there are enough (`num_available`)."""
        assert num_pages <= self.num_available
        while len(self._free) < num_pages:
            self._evict(next(iter(self._unused.values())))
            self.num_evicted += 1
        pages = [self._free.pop() for _ in range(num_pages)]
        self._new_pages += pages
        return pages

    def clear_new_pages(self) -> None:
        """Fill the pages that were allocated since the last call with zeros. Call it before the model writes to them.

        Unwritten slots have attention weight 0, but 0 · NaN is NaN, so no NaN of an earlier sequence may stay.
        """
        if self._new_pages:
            self._store.index_fill_(2, to_device(torch.tensor(self._new_pages), self._store.device), 0.0)
            self._new_pages = []

    def free_pages(self, pages: Sequence[int]) -> None:
        """Free pages from `allocate`. Pages passed to `insert_prefix` are freed by `release` instead."""
        self._free += pages

    # ── Shared prefixes ──────────────────────────────────────────────────────────────────────────────────────────

    def match_prefix(self, root_key: Hashable, tokens: Sequence[int]) -> list[PrefixNode]:
        """Return the cached pages of the longest cached prefix of `tokens`. `root_key` is the source, or None."""
        nodes: list[PrefixNode] = []
        node = self._roots.get(root_key)
        for first in range(0, len(tokens) - self.page_size + 1, self.page_size):
            node = None if node is None else node.children.get(tuple(tokens[first : first + self.page_size]))
            if node is None:
                break
            nodes.append(node)
        return nodes

    def insert_prefix(
        self, root_key: Hashable, parent: PrefixNode | None, tokens: tuple[int, ...], page: int
    ) -> PrefixNode | None:
        """Cache a full page with one holder. Returns None if another page is already cached for the same prefix."""
        if parent is None:
            parent = self._roots.setdefault(root_key, PrefixNode(root_key=root_key))
        if tokens in parent.children:
            return None
        parent.children[tokens] = PrefixNode(page, tokens, parent, num_holders=1)
        return parent.children[tokens]

    def retain(self, nodes: Sequence[PrefixNode]) -> None:
        """Add a holder to each page."""
        for node in nodes:
            node.num_holders += 1
            self._unused.pop(node.page, None)

    def release(self, nodes: Sequence[PrefixNode]) -> None:
        """Remove a holder from each page. Pages without holders stay cached until they are evicted."""
        for node in reversed(nodes):  # the last page of a sequence is evicted first
            node.num_holders -= 1
            assert node.num_holders >= 0
            if not node.num_holders:
                self._unused[node.page] = node

    def evict_unused(self) -> None:
        """Evict every cached page without holders."""
        while self._unused:
            self._evict(next(iter(self._unused.values())))

    def _evict(self, node: PrefixNode) -> None:
        assert node.parent is not None
        assert not node.children, "pages that follow must be evicted first"
        del self._unused[node.page]
        del node.parent.children[node.tokens]
        self._free.append(node.page)
        if node.parent.parent is None and not node.parent.children:
            del self._roots[node.parent.root_key]


def to_device(tensor: Tensor, device: torch.device) -> Tensor:
    """Copy a tensor from the CPU to the device. A copy to a GPU does not wait for the work before it."""
    return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor.to(device)


def pad_page_tables(tables: Sequence[Sequence[int]], num_pages: int) -> list[list[int]]:
    """Pad page tables to `num_pages` pages with the null page.

    >>> pad_page_tables([[4, 2], [7]], 3)
    [[4, 2, 0], [7, 0, 0]]
    """
    return [[*table, *[NULL_PAGE] * (num_pages - len(table))] for table in tables]


class PagedCache:
    """The pages of one batch, with the methods of `SelfCache` that a stack calls.

    `page_tables` (R, N) lists the pages of each sequence, padded with the null page. There are enough pages for the
    cached and the new tokens. `lengths` (R,) counts the cached tokens.
    """

    def __init__(self, page_pool: PagePool, page_tables: Tensor, lengths: Tensor) -> None:
        self.page_pool, self.page_tables, self.lengths = page_pool, page_tables, lengths
        self._slots = torch.zeros(0, device=page_tables.device, dtype=torch.long)
        num_slots = page_tables.shape[1] * page_pool.page_size
        self._slot_index = torch.arange(num_slots, device=page_tables.device)[None]  # (1, L)
        self._positions: Tensor | None = None  # (R, L) the position of each slot; None: its index

    @classmethod
    def from_page_tables(
        cls, page_pool: PagePool, page_tables: Sequence[Sequence[int]], lengths: Sequence[int]
    ) -> "PagedCache":
        """Make a cache from page tables of unequal length."""
        device = page_pool.keys[0].device
        padded = torch.tensor(pad_page_tables(page_tables, max(map(len, page_tables))), device=device)
        return cls(page_pool, padded, torch.tensor(lengths, device=device))

    @property
    def batch_size(self) -> int:
        """The number of sequences in the batch."""
        return self.page_tables.shape[0]

    @property
    def capacity(self) -> int:
        """The number of slots of a sequence."""
        return self._slot_index.shape[1]

    def set_positions(self, positions: Sequence[Sequence[int]]) -> None:
        """Set the positions of the cached and the new tokens of each sequence, if payloads share positions."""
        rows = [[*row, *[0] * (self.capacity - len(row))] for row in positions]
        self._positions = torch.tensor(rows, device=self.page_tables.device)

    def next_positions(self, ids: Tensor, document_ids: Tensor | None) -> Tensor:
        """Return the positions of new tokens (R, T). They continue after the last token of each sequence."""
        index = self._token_index(ids, document_ids)
        return index if self._positions is None else self._positions.gather(1, index)

    def _token_index(self, ids: Tensor, document_ids: Tensor | None) -> Tensor:
        """Return the number of each new token (R, T) in its sequence."""
        is_token = torch.ones_like(ids) if document_ids is None else (document_ids != 0).long()
        return (self.lengths[:, None] + is_token.cumsum(dim=1) - 1).clamp(min=0)

    def add_layout(self, layout: SequenceLayout) -> SequenceLayout:
        """Choose slots for new tokens. Returns the layout of all keys that `write` returns."""
        index = layout.positions.expand(self.batch_size, -1)  # (R, T)
        if self._positions is not None:
            index = self._token_index(index, layout.document_ids)
        size = self.page_pool.page_size
        slots = self.page_tables.gather(1, index // size) * size + index % size
        lengths = index + 1
        if layout.document_ids is not None:
            # Padding is written to the null page.
            slots = torch.where(layout.document_ids != 0, slots, NULL_PAGE)
            lengths = torch.where(layout.document_ids != 0, lengths, 0)
        self._slots = slots.flatten()
        self.lengths = torch.maximum(self.lengths, lengths.amax(dim=1))
        document_ids = (self._slot_index < self.lengths[:, None]).long()
        return SequenceLayout(document_ids, self._slot_index if self._positions is None else self._positions)

    def write(self, layer: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Store one layer's new keys and values (R, KV, T, D) in the slots from `add_layout`.

        Returns all keys and values of that layer, (R, KV, L, D).
        """
        return self._write(self.page_pool.keys[layer], keys), self._write(self.page_pool.values[layer], values)

    def _write(self, store: Tensor, new: Tensor) -> Tensor:
        flat = store.view(-1, *store.shape[2:])  # (P·G, KV, D)
        flat.index_copy_(0, self._slots, new.transpose(1, 2).flatten(0, 1).to(store.dtype))
        # (R·N, G, KV, D); on a CPU, index_select is much faster than store[page_tables].
        gathered = store.index_select(0, self.page_tables.flatten())
        return gathered.view(self.batch_size, -1, *store.shape[2:]).transpose(1, 2)  # (R, KV, L, D)
