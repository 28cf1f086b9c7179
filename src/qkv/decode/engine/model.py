"""Run the model on chunks of the engine's requests: in CUDA graphs, in the fast step of a CPU, or in the network.

R sequences, V vocabulary
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import cast

from torch import Tensor

from qkv.blocks import CrossCache, Inputs, SelfCache
from qkv.decode.cpu.step import CpuStep
from qkv.decode.engine import sources
from qkv.decode.engine.graphs import EngineGraphs, TokenBatch
from qkv.decode.engine.pages import PagedCache, PagePool
from qkv.decode.engine.request import Request
from qkv.decode.runner import next_logits
from qkv.models import Network


@dataclass(eq=False)
class EngineBatch:
    """The requests of one forward pass and their caches. It is valid while `version` equals the scheduler's."""

    version: int
    requests: list[Request]
    cross_cache: CrossCache | None
    cache: PagedCache | None = None


class EngineModel:
    """Runs the forward passes of an engine."""

    def __init__(
        self,
        network: Network,
        page_pool: PagePool,
        *,
        cpu_step: CpuStep | None = None,
        graphs: EngineGraphs | None = None,
    ) -> None:
        self.network, self.page_pool, self.cpu_step, self.graphs = network, page_pool, cpu_step, graphs
        self._batch: EngineBatch | None = None  # the batch of the last forward pass

    @property
    def newest_tokens(self) -> Tensor | None:
        """The newest token of each slot, from which the graphs read. None without graphs."""
        return None if self.graphs is None else self.graphs.tokens

    def __call__(self, tokens: TokenBatch, version: int) -> tuple[Tensor, Tensor | None]:
        """Return the logits (R, V) after these tokens. The graphs also return the argmax of each row."""
        requests, batch = tokens.requests, self._batch
        if batch is None or batch.version != version or batch.requests != requests:
            if batch is not None and batch.requests == requests:  # only the pages differ
                cross_cache = batch.cross_cache
            else:
                caches = [request.cross_cache for request in requests if request.cross_cache is not None]
                cross_cache = sources.batch_sources(caches) if caches else None
            batch = EngineBatch(version, requests, cross_cache)
        self._batch = None  # An error in the model leaves the cache half updated; do not reuse it.
        if self.graphs is not None and self.graphs.supports(tokens):
            batch.cache = None  # The graphs write to the page pool, and would leave the cache's lengths out of date.
            output: tuple[Tensor, Tensor | None] = self.graphs(tokens, batch.cross_cache)
        else:
            output = self._run_without_graphs(batch, tokens), None
        self._batch = batch
        return output

    def _run_without_graphs(self, batch: EngineBatch, tokens: TokenBatch) -> Tensor:
        if batch.cache is None:
            batch.cache = PagedCache.from_page_tables(
                self.page_pool, [r.page_table for r in batch.requests], [r.num_cached for r in batch.requests]
            )
        cache = cast(SelfCache, batch.cache)  # PagedCache has the methods that a stack calls
        new_tokens: list[Sequence[int]]
        if any(request.prompt is not None for request in tokens.requests):
            new_tokens = [r.chunk(num_tokens) for r, num_tokens in zip(*tokens, strict=True)]
            batch.cache.set_positions([r.positions(r.num_cached + n) for r, n in zip(*tokens, strict=True)])
        else:
            new_tokens = [r.tokens[r.num_cached : r.num_cached + n] for r, n in zip(*tokens, strict=True)]
        inputs = Inputs.from_sequences(new_tokens, side="left", device=self.page_pool.keys[0].device)
        if self.cpu_step is not None and inputs.ids.shape[1] == 1 and not inputs.payloads:
            return self.cpu_step(inputs.ids[:, 0], cache, batch.cross_cache)
        if inputs.positions is None:
            inputs = replace(inputs, positions=cache.next_positions(inputs.ids, inputs.document_ids))
        return next_logits(self.network, inputs, cache=cache, memory=batch.cross_cache)
