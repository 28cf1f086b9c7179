"""The engine's step on a GPU as a CUDA graph: the newest token of each running request, or the prompts of new ones.

Sequences join, leave and grow, but the shapes of a graph never change. So a step is captured for a bucket: batch size,
tokens per sequence, pages per sequence and source length, all rounded up, with padding for the rest. A step copies
tokens and page tables into its bucket and replays the graph. Long prompts run without a graph: they keep the device
busy for longer than their kernels take to launch. The network runs as everywhere else, so that tests run the same code
on a CPU without graphs.

R sequences, T new tokens, N pages of a sequence, S source tokens, V vocabulary, KV key/value heads, D head dim
"""

from collections.abc import Callable, Sequence
from typing import Any, cast
from weakref import ref

import numpy as np
import torch
from torch import Tensor

from qkv.blocks import CrossCache, SelfCache, SequenceLayout
from qkv.decode.engine.pages import PagedCache, PagePool, pad_page_tables
from qkv.decode.engine.request import Request
from qkv.decode.gpu.graphs import SLOTS_PER_BUCKET, capture
from qkv.decode.gpu.static_runner import LENGTH_MULTIPLE, round_up
from qkv.decode.runner import next_logits
from qkv.models import Decoder, Seq2Seq

SLOT_MULTIPLE, SOURCE_MULTIPLE, PROMPT_MULTIPLE = SLOTS_PER_BUCKET, LENGTH_MULTIPLE, 16
"""The slots of a sequence, the tokens of a source and those of a prompt are rounded up to multiples of these."""
MAX_BUCKET_TOKENS = 512
"""Up to about this number of tokens, a step is bound by reading the weights."""
MAX_BUCKETS = 64
"""The number of buckets that are kept."""


class GraphBucket:
    """Tensors of one shape, and the step on them: the first step runs uncaptured, the second is captured."""

    def __init__(
        self,
        network: Decoder | Seq2Seq,
        page_pool: PagePool,
        batch_size: int,
        num_tokens: int,
        num_pages: int,
        source_length: int,
    ) -> None:
        self.network, self.page_pool = network, page_pool
        device = page_pool.keys[0].device
        self.inputs = torch.zeros(
            3, batch_size, num_tokens, dtype=torch.long, device=device
        )  # ids, document ids, positions
        self.page_tables = torch.zeros(batch_size, num_pages, dtype=torch.long, device=device)
        self.cross_cache = _empty_cross_cache(page_pool, batch_size, source_length) if source_length else None
        self.logits: Tensor | None = None  # (R, V)
        self.graph: torch.cuda.CUDAGraph | None = None
        # Weak references to the batch whose page tables, and to the sources that are in place.
        self.current_batch: Callable[[], object] = no_reference
        self.current_sources: Callable[[], object] = no_reference

    def set_page_tables(self, page_tables: Sequence[Sequence[int]]) -> None:
        """Copy the page tables of a batch into place."""
        rows, width = self.page_tables.shape
        spare: list[list[int]] = [[]] * (rows - len(page_tables))
        self.page_tables.copy_(torch.tensor(pad_page_tables([*page_tables, *spare], width)))

    def set_sources(self, cross_cache: CrossCache) -> None:
        """Copy the sources of a batch into place, and zeros elsewhere: masked, but 0 times NaN would be NaN."""
        assert self.cross_cache is not None
        held, tokens = cross_cache.keys[0].shape[0], cross_cache.keys[0].shape[2]
        for mine, theirs in ((self.cross_cache.keys, cross_cache.keys), (self.cross_cache.values, cross_cache.values)):
            for one, other in zip(mine, theirs, strict=True):
                one[:held, :, :tokens] = other
                one[held:] = 0.0
                one[:, :, tokens:] = 0.0
        segment = self.cross_cache.layout.document_ids
        assert segment is not None
        segment.zero_()
        segment[:held, :tokens] = 1 if cross_cache.layout.document_ids is None else cross_cache.layout.document_ids

    def __call__(self, new_tokens: Sequence[Sequence[int]], num_cached: Sequence[int], pool: Any) -> Tensor:
        """Read the new tokens of each sequence, after its cached ones; returns the logits (R, V) of the next token."""
        self.inputs.copy_(torch.from_numpy(self._pad_inputs(new_tokens, num_cached)))
        if self.graph is not None:
            self.graph.replay()
        elif self.logits is None or pool is None:
            self.logits = self._step()  # uncaptured: this loads kernels, which a capture cannot do
        else:
            self.graph = capture(self._step_in_place, pool)
            self.graph.replay()
        assert self.logits is not None
        return self.logits[: len(new_tokens)]

    def _pad_inputs(self, new_tokens: Sequence[Sequence[int]], num_cached: Sequence[int]) -> np.ndarray:
        """Ids, document ids and positions, left-padded."""
        laid = np.zeros(self.inputs.shape, dtype=np.int64)
        for row, (ids, first) in enumerate(zip(new_tokens, num_cached, strict=True)):
            laid[0, row, -len(ids) :] = ids
            laid[1, row, -len(ids) :] = 1
            laid[2, row, -len(ids) :] = range(first, first + len(ids))
        return laid

    def _step_in_place(self) -> None:
        assert self.logits is not None
        self.logits.copy_(self._step())

    def _step(self) -> Tensor:
        ids, segment, position = self.inputs
        none_yet = torch.zeros(
            len(ids), dtype=torch.long, device=ids.device
        )  # the positions say how far each sequence is
        cache = cast(SelfCache, PagedCache(self.page_pool, self.page_tables, none_yet))
        return next_logits(self.network, ids, segment, position, cache=cache, cross_cache=self.cross_cache)


class EngineGraphs:
    """Buckets for the batches of an engine, made as they are needed."""

    def __init__(self, network: Decoder | Seq2Seq, page_pool: PagePool) -> None:
        self.network, self.page_pool = network, page_pool
        self.buckets: dict[tuple[int, int, int, int], GraphBucket] = {}
        self.pool = torch.cuda.graph_pool_handle() if page_pool.keys[0].is_cuda else None

    def supports(self, requests: Sequence[Request]) -> bool:
        """Whether a bucket is worthwhile for the new tokens of these requests."""
        rows, tokens = self._bucket_size(requests)
        return tokens == 1 or rows * tokens <= MAX_BUCKET_TOKENS

    def _bucket_size(self, requests: Sequence[Request]) -> tuple[int, int]:
        tokens = max(request.num_uncached for request in requests)
        return next_power_of_two(len(requests)), 1 if tokens == 1 else next_power_of_two(
            round_up(tokens, PROMPT_MULTIPLE)
        )

    def __call__(self, batch: object, requests: Sequence[Request], cross_cache: CrossCache | None) -> Tensor:
        """The logits (R, V) of the next tokens. Page tables and sources are copied only when `batch` is a new one."""
        rows, tokens = self._bucket_size(requests)
        slots = max(request.num_pages for request in requests) * self.page_pool.page_size
        width = self.page_pool.pages_for(round_up(slots, SLOT_MULTIPLE))
        source = 0 if cross_cache is None else round_up(cross_cache.keys[0].shape[2], SOURCE_MULTIPLE)
        key = (rows, tokens, width, source)
        known = self.buckets.pop(key) if key in self.buckets else None
        frame = self.buckets[key] = known or GraphBucket(self.network, self.page_pool, *key)
        if len(self.buckets) > MAX_BUCKETS:
            del self.buckets[next(iter(self.buckets))]  # the least recently used one
        if frame.current_batch() is not batch:
            frame.set_page_tables([request.page_table for request in requests])
            frame.current_batch = ref(batch)
        if cross_cache is not None and frame.current_sources() is not cross_cache:
            frame.set_sources(cross_cache)
            frame.current_sources = ref(cross_cache)
        return frame([r.tokens[r.num_cached :] for r in requests], [r.num_cached for r in requests], self.pool)


def no_reference() -> object:
    """A reference to nothing."""
    return None


def next_power_of_two(number: int) -> int:
    """The next power of two.

    >>> [next_power_of_two(n) for n in (1, 2, 3, 48)]
    [1, 2, 4, 64]
    """
    return 1 << (number - 1).bit_length()


def _empty_cross_cache(pages: PagePool, rows: int, source: int) -> CrossCache:
    """Zeros for the keys and values of sources."""
    _, _, heads, width = pages.keys[0].shape
    like = pages.keys[0]
    keys, values = ([like.new_zeros(rows, heads, source, width) for _ in pages.keys] for _ in range(2))
    segment = torch.zeros(rows, source, dtype=torch.long, device=like.device)
    return CrossCache(keys, values, SequenceLayout(segment, torch.arange(source, device=like.device)[None]))
