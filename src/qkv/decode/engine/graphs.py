"""The engine's forward passes on a GPU as CUDA graphs. A pass reads one token per running request, or some of a prompt.

Sequences join, leave and grow, but the shapes of a graph never change. So a pass is captured for a bucket of shapes:
the batch size, the tokens per sequence, the pages per sequence and the source length are rounded up, and the rest is
padding. A pass copies its inputs into the bucket in one copy, and replays the graph. Long prompts run without a graph,
because their kernels take longer to run than to launch. On a CPU the same code runs without graphs, and tests use that.

The newest token of each sequence stays on the GPU, and the next pass reads it there. So the CPU can launch a pass
before it has read the tokens of the previous pass.

R sequences, T new tokens, N pages of a sequence, S source tokens, V vocabulary, KV key/value heads, D head dim
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple, cast
from weakref import ref

import numpy as np
import torch
from torch import Tensor

from qkv.blocks import CrossCache, Inputs, SelfCache, SequenceLayout
from qkv.blocks.kernels.gpu import has_triton
from qkv.decode.engine.pages import NULL_PAGE, PagedCache, PagePool, to_device
from qkv.decode.engine.request import Request
from qkv.decode.gpu.graphs import SLOTS_PER_BUCKET, capture, graph_pool
from qkv.decode.gpu.static_runner import LENGTH_MULTIPLE, round_up
from qkv.decode.runner import next_logits
from qkv.models import Network

if TYPE_CHECKING:
    from qkv.decode.engine.paged_step import PagedStep

SLOT_MULTIPLE, SOURCE_MULTIPLE, PROMPT_MULTIPLE = SLOTS_PER_BUCKET, LENGTH_MULTIPLE, 16
"""The slots of a sequence, the tokens of a source and the tokens of a prompt are rounded up to multiples of these."""
MAX_BUCKET_TOKENS = 1024
"""Passes with more tokens, padding included, run without a graph."""
MAX_BUCKETS = 64
"""When there are more buckets, the least recently used one is dropped."""


class TokenBatch(NamedTuple):
    """The requests of one forward pass, and the number of tokens that it reads of each."""

    requests: list[Request]
    num_tokens: list[int]


class GraphBucket:
    """The input tensors of one bucket, and its graph. The first pass runs without a graph, the second captures one."""

    def __init__(
        self,
        graphs: "EngineGraphs",
        batch_size: int,
        num_tokens: int,
        num_pages: int,
        source_length: int,
        step: "PagedStep | None",
    ) -> None:
        """If `step` is given, it runs the passes, instead of the network with a `PagedCache`."""
        self.graphs, self.step = graphs, step
        self.shape = (batch_size, num_tokens, num_pages)
        # The columns: the slot, the ids, the document ids, the positions, the page table.
        self.columns = (1, num_tokens, num_tokens, num_tokens, num_pages)
        page_pool = graphs.page_pool
        self.inputs = torch.zeros(batch_size, sum(self.columns), dtype=torch.long, device=page_pool.keys[0].device)
        self.cross_cache = _empty_cross_cache(page_pool, batch_size, source_length) if source_length else None
        self.logits: Tensor | None = None  # (R, V)
        self.output: Tensor | None = None  # (R, 3) the argmax of the logits, its log-probability, its logit
        self.graph: torch.cuda.CUDAGraph | None = None
        self.current_sources: Callable[[], object] = dead_weakref  # a weak reference to the sources that were copied

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

    def __call__(self, batch: TokenBatch) -> tuple[Tensor, Tensor]:
        """Read the next tokens of each request. Returns the logits (R, V) after them, and `output` (R, 3).

        The columns of the output are the argmax of the logits, its log-probability and its logit.
        """
        rows = len(batch.requests)
        self.inputs.copy_(to_device(torch.from_numpy(self._pack_inputs(batch)), self.inputs.device), non_blocking=True)
        if self.graph is not None:
            self.graph.replay()
        elif self.logits is None or self.graphs.pool is None:
            self._run()  # without a graph: the first pass loads kernels, which a capture cannot do
        else:
            self.graph = capture(self._run, self.graphs.pool)
            self.graph.replay()
        assert self.logits is not None
        assert self.output is not None
        return self.logits[:rows, : self.graphs.network.config.stack.vocab_size], self.output[:rows]

    def _pack_inputs(self, batch: TokenBatch) -> np.ndarray:
        """Return the inputs. The tokens are left-padded. An id of −1 is a token that only the GPU knows."""
        batch_size, length, num_pages = self.shape
        requests, rows = batch.requests, len(batch.requests)
        packed = np.zeros((batch_size, sum(self.columns)), dtype=np.int64)
        slots, ids, document_ids, positions, pages = np.split(packed, np.cumsum(self.columns)[:-1], axis=1)
        slots[:] = len(self.graphs.tokens) - 1  # the slot of padding
        slots[:rows, 0] = [request.slot for request in requests]
        if length == 1:
            ids[:rows, 0] = [-1 if r.num_cached == len(r.tokens) else r.tokens[r.num_cached] for r in requests]
            document_ids[:rows] = 1
            positions[:rows, 0] = [request.num_cached for request in requests]
        else:
            for row, (request, n) in enumerate(zip(*batch, strict=True)):
                first = request.num_cached
                ids[row, -n:] = request.tokens[first : first + n]
                document_ids[row, -n:] = 1
                positions[row, -n:] = range(first, first + n)
        pages[:rows] = self.graphs.page_tables[slots[:rows, 0], :num_pages]
        return packed

    def _run(self) -> None:
        slots, ids, document_ids, positions, page_tables = self.inputs.split(self.columns, dim=1)
        graphs = self.graphs
        ids = torch.where(ids < 0, graphs.tokens[slots], ids)
        if self.step is not None:
            self.logits = self.step(ids, positions, page_tables)
            self.output = self.step.choose(self.logits, slots, graphs.tokens)
        else:
            lengths = torch.zeros_like(slots[:, 0])  # the cache computes them from `positions`
            cache = cast(SelfCache, PagedCache(graphs.page_pool, page_tables, lengths))
            inputs = Inputs(ids, document_ids=document_ids, positions=positions)
            self.logits = next_logits(graphs.network, inputs, cache=cache, memory=self.cross_cache)
            token = self.logits.argmax(-1, keepdim=True)
            dtype = torch.promote_types(self.logits.dtype, torch.float32)
            logprob = self.logits.log_softmax(-1, dtype=dtype).gather(1, token)
            graphs.tokens.index_copy_(0, slots[:, 0], token[:, 0])
            self.output = torch.cat([token.double(), logprob.double(), self.logits.gather(1, token).double()], dim=1)


class EngineGraphs:
    """The buckets of an engine. They are made when they are first needed."""

    def __init__(self, network: Network, page_pool: PagePool, max_sequences: int) -> None:
        self.network, self.page_pool = network, page_pool
        device = page_pool.keys[0].device
        self.tokens = torch.zeros(max_sequences + 1, dtype=torch.long, device=device)  # the newest token of each slot
        self.page_tables = np.full((max_sequences + 1, 1), NULL_PAGE)  # by slot, with null pages at the end
        self.copied_pages: list[list[int] | None] = [None] * max_sequences  # by slot: the list that was copied
        self.buckets: dict[tuple[int, int, int, int], GraphBucket] = {}
        self.pool = graph_pool(device) if device.type == "cuda" else None
        self.paged_step = _make_paged_step(network, page_pool) if device.type == "cuda" else None

    def split(self, batch: TokenBatch) -> list[TokenBatch]:
        """Split chunks of prompts into passes, in order, so that each is small enough for a graph if possible."""
        batches: list[TokenBatch] = []
        for request, num_tokens in zip(*batch, strict=True):
            if batches:
                larger = TokenBatch([*batches[-1].requests, request], [*batches[-1].num_tokens, num_tokens])
                if self.supports(larger):
                    batches[-1] = larger
                    continue
            batches.append(TokenBatch([request], [num_tokens]))
        return batches

    def supports(self, batch: TokenBatch) -> bool:
        """Return whether a batch has one token per sequence, or few enough tokens for a graph, and no payloads."""
        if any(request.prompt is not None for request in batch.requests):
            return False
        rows, tokens = self._bucket_shape(batch)
        return tokens == 1 or rows * tokens <= MAX_BUCKET_TOKENS

    def _bucket_shape(self, batch: TokenBatch) -> tuple[int, int]:
        """Return the batch size and the tokens per sequence, rounded up."""
        tokens = max(batch.num_tokens)
        rounded = 1 if tokens == 1 else next_power_of_two(round_up(tokens, PROMPT_MULTIPLE))
        return next_power_of_two(len(batch.requests)), rounded

    def _num_pages(self, num_slots: int, *, exact: bool) -> int:
        """Return the number of pages of a bucket for sequences of this length.

        Without `exact`, the length is rounded up further, so that fewer buckets are captured.
        """
        coarse = 4 * SLOT_MULTIPLE
        if not exact:
            num_slots = next_power_of_two(num_slots) if num_slots <= coarse else round_up(num_slots, coarse)
        return self.page_pool.pages_for(round_up(num_slots, SLOT_MULTIPLE))

    def __call__(self, batch: TokenBatch, cross_cache: CrossCache | None) -> tuple[Tensor, Tensor]:
        """Return the logits (R, V) of the next tokens, and the argmax of each with its log-probability and logit."""
        rows, tokens = self._bucket_shape(batch)
        num_slots = max(request.num_cached + n for request, n in zip(*batch, strict=True))
        step = self.paged_step if tokens == 1 and self.paged_step and num_slots <= self.paged_step.max_length else None
        num_pages = self._num_pages(num_slots, exact=tokens == 1 and step is None)  # `step` does not read the padding
        source_length = 0 if cross_cache is None else round_up(cross_cache.keys[0].shape[2], SOURCE_MULTIPLE)
        key = (rows, tokens, num_pages, source_length)
        bucket = self.buckets.pop(key, None) or GraphBucket(self, *key, step)
        self.buckets[key] = bucket  # the most recently used one comes last
        if len(self.buckets) > MAX_BUCKETS:
            del self.buckets[next(iter(self.buckets))]
        if cross_cache is not None and bucket.current_sources() is not cross_cache:
            bucket.set_sources(cross_cache)
            bucket.current_sources = ref(cross_cache)
        for request in batch.requests:
            if self.copied_pages[request.slot] is not request.page_table or request.has_new_pages:
                self._copy_page_table(request)
        if num_pages > self.page_tables.shape[1]:
            self._widen_page_tables(num_pages)
        if step is not None:
            step.refresh_weights()
        return bucket(batch)

    def _copy_page_table(self, request: Request) -> None:
        table = request.page_table
        if len(table) > self.page_tables.shape[1]:
            self._widen_page_tables(2 * len(table))
        row = self.page_tables[request.slot]
        row[: len(table)] = table
        row[len(table) :] = NULL_PAGE
        self.copied_pages[request.slot] = table
        request.has_new_pages = False

    def _widen_page_tables(self, num_pages: int) -> None:
        more = num_pages - self.page_tables.shape[1]
        self.page_tables = np.pad(self.page_tables, ((0, 0), (0, more)), constant_values=NULL_PAGE)


def _make_paged_step(network: Network, page_pool: PagePool) -> "PagedStep | None":
    """Return a `PagedStep`, or None if the network does not support it, or Triton cannot run."""
    if not has_triton():
        return None
    from qkv.decode.engine import paged_step

    return paged_step.PagedStep(network, page_pool) if paged_step.is_supported(network) else None


def dead_weakref() -> object:
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
