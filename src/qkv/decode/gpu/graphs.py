"""Decoding steps as CUDA graphs, compiled where that is asked for.

A step reads the newest tokens, writes their keys and values, and chooses the next tokens. It is captured once as a CUDA
graph and then replayed. Each replay reads the tokens that the previous one chose, so the host launches one graph per
step, and checks only every few steps whether all sequences have ended. Attention reads the filled part of the cache
only: a step is captured again for each bucket of slots, over views of the same cache that end with the bucket.

Without CUDA the same code runs without graphs; tests use that.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import torch
from torch import Tensor

from qkv.decode.gpu.static_runner import CacheView, StaticRunner

SLOTS_PER_BUCKET = 256
"""Each bucket has this many slots more than the last; the buckets of compiled steps double, as compiling takes long."""
STEPS_BETWEEN_CHECKS = 16
"""The host checks whether all sequences have ended once in this number of steps."""
MATVEC_COMPILE_OPTIONS: dict[str, Any] = {"coordinate_descent_tuning": True}
"""Compiler options for steps of one sequence, whose products are all of a matrix and a vector."""


class GraphedSteps:
    """Repeats one step whose state is all on the device."""

    def __init__(
        self,
        runner: StaticRunner,
        step: Callable[[CacheView], None],
        *,
        compiled: bool = False,
        uses_buckets: bool = True,
    ) -> None:
        """Without `uses_buckets` the step is given all slots, and finds out itself which are filled."""
        self.runner, self.step, self.uses_buckets = runner, step, uses_buckets
        self.cuda = runner.mask.is_cuda
        self.compiled = compiled and self.cuda
        if self.compiled:
            options = MATVEC_COMPILE_OPTIONS if runner.batch_size * runner.num_beams == 1 else {}
            self.step = torch.compile(step, dynamic=False, fullgraph=True, options=options)
        self.pool = torch.cuda.graph_pool_handle() if self.cuda else None
        self.views: dict[int, CacheView] = {}  # by number of slots
        self.graphs: dict[int, torch.cuda.CUDAGraph] = {}

    def __call__(self, step_number: int) -> None:
        """Run a step; number 1 is the first step that reads a generated token."""
        filled = self.runner.prompt_length + step_number * self.runner.num_beams
        slots = min(self._bucket(filled), self.runner.num_slots) if self.uses_buckets else self.runner.num_slots
        if slots in self.graphs:
            self.graphs[slots].replay()
        elif slots in self.views and self.cuda:
            self.graphs[slots] = capture(partial(self.step, self.views[slots]), self.pool)
            self.graphs[slots].replay()
        else:
            # The first step of a bucket runs uncaptured: it compiles and loads kernels, which a capture cannot do.
            view = self.views.setdefault(slots, self.runner.view(slots))
            with _raised_recompile_limit() if self.compiled else nullcontext():
                self.step(view)

    def _bucket(self, slots: int) -> int:
        buckets = -(-slots // SLOTS_PER_BUCKET)
        return SLOTS_PER_BUCKET * (1 << (buckets - 1).bit_length() if self.compiled else buckets)


def capture(step: Callable[[], None], pool: Any) -> torch.cuda.CUDAGraph:
    """Capture a step as a CUDA graph, without running it.

    Unlike `torch.cuda.graph`, this does not empty torch's memory cache, which the next batch needs again.
    """
    graph = torch.cuda.CUDAGraph()
    torch.cuda.synchronize()
    with torch.cuda.stream(torch.cuda.Stream()):
        graph.capture_begin(pool=pool)
        try:
            step()
        finally:
            graph.capture_end()
    return graph


def _raised_recompile_limit() -> AbstractContextManager[object]:
    """The compiler makes a version for each bucket and batch shape, more than its default limit allows."""
    patched: AbstractContextManager[object] = torch._dynamo.config.patch(
        recompile_limit=512, accumulated_recompile_limit=4096
    )
    return patched


def run_steps(steps: GraphedSteps, max_new_tokens: int, done: Tensor) -> None:
    """Run all steps after the first token, or until every sequence is done."""
    for number in range(1, max_new_tokens):
        steps(number)
        if number % STEPS_BETWEEN_CHECKS == 0 and bool(done.all()):
            return


def is_in(token: Tensor, token_ids: tuple[int, ...]) -> Tensor:
    """True where a token is one of a few token ids."""
    out = torch.zeros_like(token, dtype=torch.bool)
    for token_id in token_ids:
        out = out | (token == token_id)
    return out
