"""The engine's steps on a GPU as CUDA graphs. A step reads one token per running request, or the prompts of new ones.

Sequences join, leave and grow, but the shapes of a graph never change. So a step is captured for a bucket of shapes:
the batch size, the tokens per sequence, the pages per sequence and the source length are rounded up, and the rest is
padding. A step copies tokens and page tables into its bucket and replays the graph. Long prompts run without a graph,
because their kernels take longer to run than to launch. On a CPU the same code runs without graphs, and tests use that.

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
"""The slots of a sequence, the tokens of a source and the tokens of a prompt are rounded up to multiples of these."""
MAX_BUCKET_TOKENS = 512
"""Prefill steps with more tokens run without a graph. With fewer tokens, a step spends most of its time reading the
weights, so that padding costs little."""
MAX_BUCKETS = 64
"""When there are more buckets, the least recently used one is dropped."""


class GraphBucket:
    """The input tensors of one bucket, and its graph. The first step runs without a graph, the second captures one."""

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
        # ids, document ids and positions
        self.inputs = torch.zeros(3, batch_size, num_tokens, dtype=torch.long, device=device)
        self.page_tables = torch.zeros(batch_size, num_pages, dtype=torch.long, device=device)
        self.cross_cache = _empty_cross_cache(page_pool, batch_size, source_length) if source_length else None
        self.logits: Tensor | None = None  # (R, V)
        self.graph: torch.cuda.CUDAGraph | None = None
        # Weak references: to the batch whose page tables were copied last, and to the sources that were copied last.
        self.current_batch: Callable[[], object] = no_reference
        self.current_sources: Callable[[], object] = no_reference

    def set_page_tables(self, page_tables: Sequence[Sequence[int]]) -> None:
        """Copy the page tables of a batch into the bucket."""
        batch_size, num_pages = self.page_tables.shape
        unused: list[list[int]] = [[]] * (batch_size - len(page_tables))
        self.page_tables.copy_(torch.tensor(pad_page_tables([*page_tables, *unused], num_pages)))

    def set_sources(self, cross_cache: CrossCache) -> None:
        """Copy the sources of a batch into the bucket, and fill the rest with zeros.

        The rest is masked, but an old NaN there would still make the output NaN, because 0 · NaN is NaN.
        """
        assert self.cross_cache is not None
        rows, tokens = cross_cache.keys[0].shape[0], cross_cache.keys[0].shape[2]
        targets = (*self.cross_cache.keys, *self.cross_cache.values)
        for target, source in zip(targets, (*cross_cache.keys, *cross_cache.values), strict=True):
            target[:rows, :, :tokens] = source
            target[rows:] = 0.0
            target[:, :, tokens:] = 0.0
        document_ids = self.cross_cache.layout.document_ids
        assert document_ids is not None
        document_ids.zero_()
        source_ids = cross_cache.layout.document_ids
        document_ids[:rows, :tokens] = 1 if source_ids is None else source_ids

    def __call__(self, new_tokens: Sequence[Sequence[int]], num_cached: Sequence[int], pool: Any) -> Tensor:
        """Read the new tokens of each sequence, which follow its cached ones. Returns the logits (R, V) after them."""
        self.inputs.copy_(torch.from_numpy(self._pad_inputs(new_tokens, num_cached)))
        if self.graph is not None:
            self.graph.replay()
        elif self.logits is None or pool is None:
            self.logits = self._step()  # without a graph: the first step loads kernels, which a capture cannot do
        else:
            self.graph = capture(self._step_in_place, pool)
            self.graph.replay()
        assert self.logits is not None
        return self.logits[: len(new_tokens)]

    def _pad_inputs(self, new_tokens: Sequence[Sequence[int]], num_cached: Sequence[int]) -> np.ndarray:
        """Return the ids, document ids and positions of the new tokens, left-padded."""
        padded = np.zeros(self.inputs.shape, dtype=np.int64)
        for row, (ids, first) in enumerate(zip(new_tokens, num_cached, strict=True)):
            padded[0, row, -len(ids) :] = ids
            padded[1, row, -len(ids) :] = 1
            padded[2, row, -len(ids) :] = range(first, first + len(ids))
        return padded

    def _step_in_place(self) -> None:
        assert self.logits is not None
        self.logits.copy_(self._step())

    def _step(self) -> Tensor:
        ids, document_ids, positions = self.inputs
        lengths = torch.zeros(len(ids), dtype=torch.long, device=ids.device)  # the cache computes them from `positions`
        cache = cast(SelfCache, PagedCache(self.page_pool, self.page_tables, lengths))
        return next_logits(self.network, ids, document_ids, positions, cache=cache, cross_cache=self.cross_cache)


class EngineGraphs:
    """The buckets of an engine. They are made when they are first needed."""

    def __init__(self, network: Decoder | Seq2Seq, page_pool: PagePool) -> None:
        self.network, self.page_pool = network, page_pool
        self.buckets: dict[tuple[int, int, int, int], GraphBucket] = {}
        self.pool = torch.cuda.graph_pool_handle() if page_pool.keys[0].is_cuda else None

    def supports(self, requests: Sequence[Request]) -> bool:
        """Return whether the new tokens of these requests are few enough for a graph."""
        rows, tokens = self._bucket_shape(requests)
        return tokens == 1 or rows * tokens <= MAX_BUCKET_TOKENS

    def _bucket_shape(self, requests: Sequence[Request]) -> tuple[int, int]:
        """Return the batch size and the tokens per sequence, rounded up."""
        tokens = max(request.num_uncached for request in requests)
        rounded = 1 if tokens == 1 else next_power_of_two(round_up(tokens, PROMPT_MULTIPLE))
        return next_power_of_two(len(requests)), rounded

    def __call__(self, batch: object, requests: Sequence[Request], cross_cache: CrossCache | None) -> Tensor:
        """Return the logits (R, V) of the next tokens.

        Page tables are copied only if `batch` is new to its bucket, and sources only if `cross_cache` is.
        """
        slots = max(request.num_pages for request in requests) * self.page_pool.page_size
        num_pages = self.page_pool.pages_for(round_up(slots, SLOT_MULTIPLE))
        source_length = 0 if cross_cache is None else round_up(cross_cache.keys[0].shape[2], SOURCE_MULTIPLE)
        key = (*self._bucket_shape(requests), num_pages, source_length)
        bucket = self.buckets.pop(key, None) or GraphBucket(self.network, self.page_pool, *key)
        self.buckets[key] = bucket  # the most recently used one comes last
        if len(self.buckets) > MAX_BUCKETS:
            del self.buckets[next(iter(self.buckets))]
        if bucket.current_batch() is not batch:
            bucket.set_page_tables([request.page_table for request in requests])
            bucket.current_batch = ref(batch)
        if cross_cache is not None and bucket.current_sources() is not cross_cache:
            bucket.set_sources(cross_cache)
            bucket.current_sources = ref(cross_cache)
        return bucket([r.tokens[r.num_cached :] for r in requests], [r.num_cached for r in requests], self.pool)


def no_reference() -> object:
    """Return None, as a weak reference to a deleted object does."""
    return None


def next_power_of_two(number: int) -> int:
    """Round up to a power of two.

    >>> [next_power_of_two(n) for n in (1, 2, 3, 48)]
    [1, 2, 4, 64]
    """
    return 1 << (number - 1).bit_length()


def _empty_cross_cache(page_pool: PagePool, batch_size: int, source_length: int) -> CrossCache:
    """Return a cross-attention cache of zeros, with the heads and dtype of the page pool."""
    like = page_pool.keys[0]
    _, _, heads, width = like.shape
    shape = (batch_size, heads, source_length, width)
    keys, values = ([like.new_zeros(shape) for _ in page_pool.keys] for _ in range(2))
    document_ids = torch.zeros(batch_size, source_length, dtype=torch.long, device=like.device)
    positions = torch.arange(source_length, device=like.device)[None]
    return CrossCache(keys, values, SequenceLayout(document_ids, positions))
