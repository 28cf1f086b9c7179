"""The engine's step on a GPU, as a CUDA graph: the newest token of each running text, or the prompts of newcomers.

Texts come and go and grow, but a graph's shapes never change. So a step is captured for a frame: so many rows, so many
tokens to read in each, so many pages a row, so many source tokens, all rounded up; what a text lacks in a frame is
padding that nobody looks at. A step copies tokens and tables into its frame and replays. Long prompts go without: they
keep the device busy for longer than their kernels take to start. The network is run as it is anywhere else, so that on
a CPU the same code runs without graphs, which is how it is tested.

R rows, T tokens to read, N pages of a row, S source tokens, V vocabulary, KV key/value heads, D head width
"""

from collections.abc import Callable, Sequence
from typing import Any, cast
from weakref import ref

import numpy as np
import torch
from torch import Tensor

from qkv.blocks import CrossCache, Place, SelfCache
from qkv.decode.pages import PagedCache, Pages, squared
from qkv.decode.request import Request
from qkv.decode.run import next_logits
from qkv.decode.static import BUCKET, capture
from qkv.decode.static_step import ALIGNED, rounded
from qkv.models import Decoder, Seq2Seq

SLOTS, SOURCE, PROMPT = BUCKET, ALIGNED, 16
"""Multiples that the tokens of a row's pages, those of a source, and those of a prompt are rounded up to."""
MOST = 512
"""How many tokens a frame reads at most: up to about so many, reading the weights takes longer than using them."""
FRAMES = 64
"""How many frames are kept."""


class Frame:
    """Tensors of one shape, and the step on them: the first time it runs as it is, the second time it is captured."""

    def __init__(
        self, network: Decoder | Seq2Seq, pages: Pages, rows: int, tokens: int, width: int, source: int
    ) -> None:
        self.network, self.pages = network, pages
        device = pages.keys[0].device
        self.fed = torch.zeros(3, rows, tokens, dtype=torch.long, device=device)  # ids, segments, positions
        self.table = torch.zeros(rows, width, dtype=torch.long, device=device)
        self.cross = _room(pages, rows, source) if source else None
        self.logits: Tensor | None = None  # (R, V)
        self.graph: torch.cuda.CUDAGraph | None = None
        # What is laid out here, without keeping it: the batch whose tables, and the sources.
        self.shows: Callable[[], object] = nothing
        self.holds: Callable[[], object] = nothing

    def lay_out(self, tables: Sequence[Sequence[int]]) -> None:
        """Put the pages of a batch in place."""
        rows, width = self.table.shape
        spare: list[list[int]] = [[]] * (rows - len(tables))
        self.table.copy_(torch.tensor(squared([*tables, *spare], width)))

    def lay_sources(self, cross: CrossCache) -> None:
        """Put the sources of a batch in place, and zeros where there are none: unseen, but zero times NaN is NaN."""
        assert self.cross is not None
        held, tokens = cross.keys[0].shape[0], cross.keys[0].shape[2]
        for mine, theirs in ((self.cross.keys, cross.keys), (self.cross.values, cross.values)):
            for one, other in zip(mine, theirs, strict=True):
                one[:held, :, :tokens] = other
                one[held:] = 0.0
                one[:, :, tokens:] = 0.0
        segment = self.cross.place.segment
        assert segment is not None
        segment.zero_()
        segment[:held, :tokens] = 1 if cross.place.segment is None else cross.place.segment

    def __call__(self, fed: Sequence[Sequence[int]], filled: Sequence[int], pool: Any) -> Tensor:
        """Read tokens of each row, which has so many already; the logits (R, V) of what comes next."""
        self.fed.copy_(torch.from_numpy(self._laid(fed, filled)))
        if self.graph is not None:
            self.graph.replay()
        elif self.logits is None or pool is None:
            self.logits = self._step()  # as it is: this loads kernels, which a capture cannot wait for
        else:
            self.graph = capture(self._step_again, pool)
            self.graph.replay()
        assert self.logits is not None
        return self.logits[: len(fed)]

    def _laid(self, fed: Sequence[Sequence[int]], filled: Sequence[int]) -> np.ndarray:
        """Ids, segments and positions, flush right."""
        laid = np.zeros(self.fed.shape, dtype=np.int64)
        for row, (ids, first) in enumerate(zip(fed, filled, strict=True)):
            laid[0, row, -len(ids) :] = ids
            laid[1, row, -len(ids) :] = 1
            laid[2, row, -len(ids) :] = range(first, first + len(ids))
        return laid

    def _step_again(self) -> None:
        assert self.logits is not None
        self.logits.copy_(self._step())

    def _step(self) -> Tensor:
        ids, segment, position = self.fed
        none_yet = torch.zeros(len(ids), dtype=torch.long, device=ids.device)  # positions say how far a row is
        cache = cast(SelfCache, PagedCache(self.pages, self.table, none_yet))
        return next_logits(self.network, ids, segment, position, cache=cache, cross=self.cross)


class EngineSteps:
    """Frames for whatever runs together, made as they are needed."""

    def __init__(self, network: Decoder | Seq2Seq, pages: Pages) -> None:
        self.network, self.pages = network, pages
        self.frames: dict[tuple[int, int, int, int], Frame] = {}
        self.pool = torch.cuda.graph_pool_handle() if pages.keys[0].is_cuda else None

    def take(self, group: Sequence[Request]) -> bool:
        """Whether what these have to read fits a frame."""
        rows, tokens = self._size(group)
        return tokens == 1 or rows * tokens <= MOST

    def _size(self, group: Sequence[Request]) -> tuple[int, int]:
        tokens = max(request.unread for request in group)
        return power(len(group)), 1 if tokens == 1 else power(rounded(tokens, PROMPT))

    def __call__(self, batch: object, group: Sequence[Request], cross: CrossCache | None) -> Tensor:
        """What comes next in each text of a group, whose pages and sources stay as long as `batch` does; (R, V)."""
        rows, tokens = self._size(group)
        slots = max(request.held for request in group) * self.pages.size
        width = self.pages.needed(rounded(slots, SLOTS))
        source = 0 if cross is None else rounded(cross.keys[0].shape[2], SOURCE)
        key = (rows, tokens, width, source)
        known = self.frames.pop(key) if key in self.frames else None
        frame = self.frames[key] = known or Frame(self.network, self.pages, *key)
        if len(self.frames) > FRAMES:
            del self.frames[next(iter(self.frames))]  # the one that was not used for longest
        if frame.shows() is not batch:
            frame.lay_out([request.table for request in group])
            frame.shows = ref(batch)
        if cross is not None and frame.holds() is not cross:
            frame.lay_sources(cross)
            frame.holds = ref(cross)
        return frame([r.tokens[r.filled :] for r in group], [r.filled for r in group], self.pool)


def nothing() -> object:
    """A reference to nothing."""
    return None


def power(number: int) -> int:
    """The next power of two.

    >>> [power(n) for n in (1, 2, 3, 48)]
    [1, 2, 4, 64]
    """
    return 1 << (number - 1).bit_length()


def _room(pages: Pages, rows: int, source: int) -> CrossCache:
    """Empty places for the keys and values of sources."""
    _, _, heads, width = pages.keys[0].shape
    like = pages.keys[0]
    keys, values = ([like.new_zeros(rows, heads, source, width) for _ in pages.keys] for _ in range(2))
    segment = torch.zeros(rows, source, dtype=torch.long, device=like.device)
    return CrossCache(keys, values, Place(segment, torch.arange(source, device=like.device)[None]))
