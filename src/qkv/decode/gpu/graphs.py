"""Decoding steps as CUDA graphs, optionally compiled.

A step reads the newest tokens, writes their keys and values, and computes the next logits. It is captured as a CUDA
graph, once for each number of slots that it reads (below), and then replayed. In greedy decoding and beam search the
step also chooses the next tokens, and the next replay reads them. So the CPU only launches one graph per step, and
checks every few steps whether all sequences have ended. In `GraphRunner` the tokens are chosen after the step.

Attention should not read empty slots. So slots are counted in buckets: a step reads only the first n buckets of the
cache, and is captured again when n grows. Without CUDA the same code runs without graphs, and tests use that.
"""

from collections.abc import Callable
from contextlib import nullcontext
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor

from qkv.decode.gpu.static_runner import CacheView, StaticRunner

SLOTS_PER_BUCKET = 256
"""The number of slots that a step reads grows by this number. For compiled steps, the number of slots doubles instead,
so that they are compiled less often."""
STEPS_BETWEEN_CHECKS = 16
"""The CPU checks once in this number of steps whether all sequences have ended."""
MATVEC_COMPILE_OPTIONS: dict[str, Any] = {"coordinate_descent_tuning": True}
"""The compiler options for steps of one sequence, in which every product is a matrix times a vector."""
RECOMPILE_LIMITS = {"recompile_limit": 512, "accumulated_recompile_limit": 4096}
"""A step is compiled once for each number of slots and each batch shape."""


class GraphedSteps:
    """Runs one step repeatedly, as CUDA graphs. All state of the step is on the device."""

    def __init__(
        self,
        runner: StaticRunner,
        step: Callable[[CacheView], None],
        *,
        compiled: bool = False,
        uses_buckets: bool = True,
    ) -> None:
        """If `uses_buckets` is false, the step always gets a view of all slots, and must skip the empty ones itself."""
        self.runner, self.step, self.uses_buckets = runner, step, uses_buckets
        self.cuda = runner.mask.is_cuda
        self.compiled = compiled and self.cuda
        if self.compiled:
            options = MATVEC_COMPILE_OPTIONS if runner.batch_size * runner.num_beams == 1 else {}
            self.step = torch.compile(step, dynamic=False, fullgraph=True, options=options)
        self.pool = graph_pool(runner.mask.device) if self.cuda else None
        self.views: dict[int, CacheView] = {}  # by number of slots
        self.graphs: dict[int, torch.cuda.CUDAGraph] = {}

    def __call__(self, step_number: int) -> None:
        """Run a step. Step 1 is the first one that reads a generated token."""
        filled = self.runner.prompt_length + step_number * self.runner.num_beams
        slots = min(self._bucket(filled), self.runner.num_slots) if self.uses_buckets else self.runner.num_slots
        if slots in self.graphs:
            self.graphs[slots].replay()
        elif slots in self.views and self.cuda:
            self.graphs[slots] = capture(partial(self.step, self.views[slots]), self.pool)
            self.graphs[slots].replay()
        else:
            # The first step with this number of slots runs without a graph: it compiles and loads kernels.
            view = self.views.setdefault(slots, self.runner.view(slots))
            with torch._dynamo.config.patch(RECOMPILE_LIMITS) if self.compiled else nullcontext():
                self.step(view)

    def _bucket(self, slots: int) -> int:
        buckets = -(-slots // SLOTS_PER_BUCKET)
        return SLOTS_PER_BUCKET * (1 << (buckets - 1).bit_length() if self.compiled else buckets)


def capture(step: Callable[[], object], pool: Any) -> torch.cuda.CUDAGraph:
    """Capture a step as a CUDA graph, without running it.

    Unlike `torch.cuda.graph`, this does not empty torch's memory cache, which the next batch uses again.
    """
    graph = torch.cuda.CUDAGraph()
    torch.cuda.synchronize()
    with torch.cuda.stream(_capture_stream(torch.cuda.current_device())):
        graph.capture_begin(pool=pool)
        try:
            step()
        finally:
            graph.capture_end()
    return graph


@cache
def graph_pool(device: torch.device) -> Any:
    """Return the memory pool that all decoding graphs on this GPU share. Graphs run one after another.

    Torch keeps the pool of a deleted graph for itself, and cannot free it during a capture. So with a pool for each
    call, a process that decodes many batches would run out of memory.
    """
    pool = torch.cuda.graph_pool_handle()
    _first_graphs.append(capture(torch.zeros(1, device=device).zero_, pool))
    return pool


_first_graphs: list[torch.cuda.CUDAGraph] = []  # a graph in each pool, because torch releases a pool without graphs


@cache
def _capture_stream(device: int) -> torch.cuda.Stream:
    """Return the stream of all captures on a GPU, because memory of a pool is only reused on the same stream."""
    return torch.cuda.Stream(device)


def run_steps(steps: GraphedSteps, max_new_tokens: int, done: Tensor) -> None:
    """Run the steps that generate all tokens but the first. Stop early when every sequence is done."""
    for number in range(1, max_new_tokens):
        steps(number)
        if number % STEPS_BETWEEN_CHECKS == 0 and bool(done.all()):
            return


def is_in(token: Tensor, token_ids: tuple[int, ...]) -> Tensor:
    """Return a mask that is True where a token is one of `token_ids`."""
    out = torch.zeros_like(token, dtype=torch.bool)
    for token_id in token_ids:
        out = out | (token == token_id)
    return out
