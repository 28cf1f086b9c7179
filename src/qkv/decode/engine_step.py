"""The engine's step on a GPU: one token for each running text, as a CUDA graph.

Texts come and go and grow, but a graph's shapes never change. So a step is captured for a frame: so many rows, so many
pages a row, so many source tokens, each rounded up; what a text lacks in a frame is padding that nobody looks at. A
step copies tokens, counts and tables into its frame and replays. The network is run as it is anywhere else, so that on
a CPU the same code runs without graphs, which is how it is tested.

R rows, N pages of a row, S source tokens, V vocabulary, KV key/value heads, D head width
"""

from collections.abc import Sequence
from typing import Any, cast

import torch
from torch import Tensor

from qkv.blocks import CrossCache, Place, SelfCache
from qkv.decode.pages import PagedCache, Pages, squared
from qkv.decode.request import Request
from qkv.decode.run import next_logits
from qkv.decode.static import BUCKET, capture
from qkv.decode.static_step import ALIGNED, rounded
from qkv.models import Decoder, Seq2Seq

SLOTS, SOURCE = BUCKET, ALIGNED
"""Multiples that the tokens of a row's pages, and those of a source, are rounded up to."""


class Frame:
    """Tensors of one shape, and the step on them: the first time it runs as it is, the second time it is captured."""

    def __init__(self, network: Decoder | Seq2Seq, pages: Pages, rows: int, width: int, source: int) -> None:
        self.network, self.pages = network, pages
        device = pages.keys[0].device
        self.ids, self.live, self.filled = (torch.zeros(rows, dtype=torch.long, device=device) for _ in range(3))
        self.table = torch.zeros(rows, width, dtype=torch.long, device=device)
        self.cross = _room(pages, rows, source) if source else None
        self.logits: Tensor | None = None  # (R, V)
        self.graph: torch.cuda.CUDAGraph | None = None
        self.shows: object = None  # the batch whose tables are laid out here
        self.holds: CrossCache | None = None  # the sources that are copied here

    def lay_out(self, tables: Sequence[Sequence[int]]) -> None:
        """Put the pages of a batch in place."""
        rows, width = self.table.shape
        spare: list[list[int]] = [[]] * (rows - len(tables))
        self.table.copy_(torch.tensor(squared([*tables, *spare], width)))
        self.live.copy_((torch.arange(rows) < len(tables)).long())

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

    def __call__(self, ids: Sequence[int], filled: Sequence[int], pool: Any) -> Tensor:
        """Read a token of each row; the logits (R, V) of what comes next."""
        more = [0] * (len(self.ids) - len(ids))
        self.ids.copy_(torch.tensor([*ids, *more]))
        self.filled.copy_(torch.tensor([*filled, *more]))
        if self.graph is not None:
            self.graph.replay()
        elif self.logits is None or pool is None:
            self.logits = self._step()  # as it is: this loads kernels, which a capture cannot wait for
        else:
            self.graph = capture(self._step_again, pool)
            self.graph.replay()
        assert self.logits is not None
        return self.logits[: len(ids)]

    def _step_again(self) -> None:
        assert self.logits is not None
        self.logits.copy_(self._step())

    def _step(self) -> Tensor:
        cache = cast(SelfCache, PagedCache(self.pages, self.table, self.filled))
        position, segment = self.filled[:, None], self.live[:, None]
        return next_logits(self.network, self.ids[:, None], segment, position, cache=cache, cross=self.cross)


class EngineSteps:
    """Frames for whatever runs together, made as they are needed."""

    def __init__(self, network: Decoder | Seq2Seq, pages: Pages) -> None:
        self.network, self.pages = network, pages
        self.frames: dict[tuple[int, int, int], Frame] = {}
        self.pool = torch.cuda.graph_pool_handle() if pages.keys[0].is_cuda else None

    def __call__(self, batch: object, group: Sequence[Request], cross: CrossCache | None) -> Tensor:
        """One token for each of a group, whose pages and sources stay as long as `batch` does."""
        rows = 1 << (len(group) - 1).bit_length()
        slots = max(len(request.table) for request in group) * self.pages.size
        width = self.pages.needed(rounded(slots, SLOTS))
        source = 0 if cross is None else rounded(cross.keys[0].shape[2], SOURCE)
        key = (rows, width, source)
        if key not in self.frames:
            self.frames[key] = Frame(self.network, self.pages, *key)
        frame = self.frames[key]
        if frame.shows is not batch:
            frame.lay_out([request.table for request in group])
            frame.shows = batch
        if frame.holds is not cross and cross is not None:
            frame.lay_sources(cross)
            frame.holds = cross
        newest = [request.tokens[-1] for request in group]
        return frame(newest, [request.filled for request in group], self.pool)


def _room(pages: Pages, rows: int, source: int) -> CrossCache:
    """Empty places for the keys and values of sources."""
    _, _, heads, width = pages.keys[0].shape
    like = pages.keys[0]
    keys, values = ([like.new_zeros(rows, heads, source, width) for _ in pages.keys] for _ in range(2))
    segment = torch.zeros(rows, source, dtype=torch.long, device=like.device)
    return CrossCache(keys, values, Place(segment, torch.arange(source, device=like.device)[None]))
