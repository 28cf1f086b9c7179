"""Keys and values in pages: a text takes a page when it needs one, and texts that begin alike share theirs.

A page holds G tokens of one text, in all layers. Token p of a text stands in slot p mod G of its page number p div G,
so a slot's position needs no keeping. Page 0 is nobody's: what has no place of its own points there, and none looks.

A full page is known by its tokens and by the page before it. A text that begins with the same tokens points to the
same pages, and nothing is copied: full pages are never written again. A page that nobody holds stays known until
its place is needed; of those the one that was let go first makes way, and always before the page it follows.

P pages, G slots in a page, R rows, N pages of a row, L = N·G slots shown, T new tokens,
KV key/value heads, D head width
"""

from collections import OrderedDict
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from qkv.blocks import Place, SelfCache

BLANK = 0


@dataclass(eq=False)
class Known:
    """A full page whose tokens are known. A root, with no page and nothing above, is where texts begin."""

    page: int = BLANK
    tokens: tuple[int, ...] = ()
    above: "Known | None" = None
    holders: int = 0
    below: dict[tuple[int, ...], "Known"] = field(default_factory=dict)
    origin: Hashable = None  # a root's


class Pages:
    """The memory of all texts: who has which page, which are free, and which hold a beginning that may be reused."""

    def __init__(self, like: SelfCache, count: int, size: int) -> None:
        """Room for `count` pages of `size` tokens each, in the layers, heads and type of the cache `like`."""
        if count < 1 or size < 1:
            raise ValueError(f"there must be at least one page of one token, not {count} of {size}")
        one = like.keys[0]
        _, heads, _, width = one.shape
        shape = (2, len(like.keys), 1 + count, size, heads, width)
        self._store = torch.zeros(shape, device=one.device, dtype=one.dtype)  # one tensor, so that one call blanks
        self.keys, self.values = (list(half.unbind()) for half in self._store)
        self.count, self.size = count, size
        self.evicted = 0
        self._spare = list(range(count, BLANK, -1))
        self._unheld: OrderedDict[int, Known] = OrderedDict()  # by page; the first one makes way first
        self._roots: dict[Hashable, Known] = {}

    @property
    def free(self) -> int:
        """How many pages nobody holds."""
        return len(self._spare) + len(self._unheld)

    @property
    def bytes(self) -> int:
        """The memory of all keys and values."""
        return self._store.numel() * self._store.element_size()

    def needed(self, tokens: int) -> int:
        """How many pages so many tokens fill or begin."""
        return -(-tokens // self.size)

    def take(self, count: int) -> list[int]:
        """Pages for new tokens, blank; the caller has seen that as many are free."""
        assert count <= self.free
        while len(self._spare) < count:
            self._forget(next(iter(self._unheld.values())))
            self.evicted += 1
        taken = [self._spare.pop() for _ in range(count)]
        if taken:
            # A slot that is not yet written has weight zero, and zero times the NaN of an earlier text is NaN.
            self._store.index_fill_(2, torch.tensor(taken, device=self._store.device), 0.0)
        return taken

    def give_back(self, pages: Sequence[int]) -> None:
        """Pages that `take` gave and that were not made known."""
        self._spare += pages

    # ---------------------------------------------------------------- beginnings that texts share

    def find(self, origin: Hashable, tokens: Sequence[int]) -> list[Known]:
        """The known pages with which a text begins; `origin` is what else its keys depend on (its source)."""
        found: list[Known] = []
        here = self._roots.get(origin)
        for first in range(0, len(tokens) - self.size + 1, self.size):
            here = None if here is None else here.below.get(tuple(tokens[first : first + self.size]))
            if here is None:
                break
            found.append(here)
        return found

    def make_known(self, origin: Hashable, above: Known | None, tokens: tuple[int, ...], page: int) -> Known | None:
        """A full page that its holder goes on holding; None where another page is known for the same tokens."""
        if above is None:
            above = self._roots.setdefault(origin, Known(origin=origin))
        if tokens in above.below:
            return None
        above.below[tokens] = Known(page, tokens, above, holders=1)
        return above.below[tokens]

    def hold(self, known: Sequence[Known]) -> None:
        for one in known:
            one.holders += 1
            self._unheld.pop(one.page, None)

    def let_go(self, known: Sequence[Known]) -> None:
        for one in reversed(known):  # what comes later in a text makes way earlier
            one.holders -= 1
            assert one.holders >= 0
            if not one.holders:
                self._unheld[one.page] = one

    def forget(self) -> None:
        """Forget every beginning that nobody holds."""
        while self._unheld:
            self._forget(next(iter(self._unheld.values())))

    def _forget(self, known: Known) -> None:
        assert known.above is not None
        assert not known.below, "a page makes way before the one that it follows"
        del self._unheld[known.page]
        del known.above.below[known.tokens]
        self._spare.append(known.page)
        if known.above.above is None and not known.above.below:
            del self._roots[known.above.origin]


def squared(tables: Sequence[Sequence[int]], width: int) -> list[list[int]]:
    """Tables of pages, filled up to one width.

    >>> squared([[4, 2], [7]], 3)
    [[4, 2, 0], [7, 0, 0]]
    """
    return [[*table, *[BLANK] * (width - len(table))] for table in tables]


class PagedCache:
    """The pages of one batch of texts, as a stack asks for them: what `SelfCache` is to rows that fill in step.

    `table` (R, N) names each row's pages, enough for what it holds and what will be written, BLANK after them; `filled`
    (R,) counts its tokens.
    """

    def __init__(self, pages: Pages, table: Tensor, filled: Tensor) -> None:
        self.pages, self.table, self.row_filled = pages, table, filled
        self._slots = torch.zeros(0, device=table.device, dtype=torch.long)
        self._shown = torch.arange(table.shape[1] * pages.size, device=table.device)[None]  # (1, L)

    @classmethod
    def of(cls, pages: Pages, tables: Sequence[Sequence[int]], filled: Sequence[int]) -> "PagedCache":
        """Rows with as many pages as each of them has."""
        device = pages.keys[0].device
        laid = torch.tensor(squared(tables, max(map(len, tables))), device=device)
        return cls(pages, laid, torch.tensor(filled, device=device))

    @property
    def rows(self) -> int:
        return self.table.shape[0]

    @property
    def length(self) -> int:
        """How many slots are shown."""
        return self._shown.shape[1]

    def next_positions(self, ids: Tensor, segment: Tensor | None) -> Tensor:
        """Positions of new tokens (R, T): each row counts on from its last real token."""
        real = torch.ones_like(ids) if segment is None else (segment != 0).long()
        return (self.row_filled[:, None] + real.cumsum(dim=1) - 1).clamp(min=0)

    def extend(self, place: Place) -> Place:
        """Take slots for new tokens; returns the places of all keys that attention will be shown."""
        position = place.position.expand(self.rows, -1)  # (R, T)
        size = self.pages.size
        slots = self.table.gather(1, position // size) * size + position % size
        newest = position + 1
        if place.segment is not None:
            # Padding is written too, to the page that is nobody's.
            slots = torch.where(place.segment != 0, slots, BLANK)
            newest = torch.where(place.segment != 0, newest, 0)
        self._slots = slots.flatten()
        self.row_filled = torch.maximum(self.row_filled, newest.amax(dim=1))
        return Place((self._shown < self.row_filled[:, None]).long(), self._shown)

    def write(self, layer: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Store one layer's new keys and values (R, KV, T, D) in the slots taken; returns all of that layer's."""
        return self._write(self.pages.keys[layer], keys), self._write(self.pages.values[layer], values)

    def _write(self, store: Tensor, new: Tensor) -> Tensor:
        flat = store.view(-1, *store.shape[2:])  # (P·G, KV, D)
        flat.index_copy_(0, self._slots, new.transpose(1, 2).flatten(0, 1).to(store.dtype))
        shown = store.index_select(0, self.table.flatten())  # (R·N, G, KV, D): on a CPU much faster than store[table]
        return shown.view(self.rows, -1, *store.shape[2:]).transpose(1, 2)  # (R, KV, L, D)
