"""Decoding without waiting for the host: steps captured as CUDA graphs, compiled where asked for, and greedy ones.

A step (read the newest tokens, write their keys and values, choose the next) is captured once as a CUDA graph and then
replayed; each replay reads the tokens that the last one chose, so the host sends one command a step and looks at the
result only every few steps, to see whether all rows have ended. The step's cost follows the filled part of the cache:
it is captured anew for each bucket of slots, over views of the same cache that end with the bucket.

On a CPU the same code runs without graphs, which is how it is tested.

N rows, V vocabulary
"""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from qkv.blocks.gpu import has_triton
from qkv.decode.one_row import OneRowLinear, with_linears
from qkv.decode.run import Run
from qkv.decode.static_step import Seen, StaticRun
from qkv.models import Decoder, Seq2Seq

BUCKET = 256
"""How many slots a captured step sees more than the last one; compiled ones see twice as many, as they cost a wait."""
LOOK = 16
"""After how many steps the host looks whether all rows have ended."""
ONE_ROW: dict[str, Any] = {"coordinate_descent_tuning": True}
"""What the compiler is told where a step is all products of a matrix and a vector."""


@dataclass
class Written:
    """What greedy decoding wrote: tokens (N, T) and their log-probabilities, the end included, −1 after it."""

    tokens: Tensor
    logprobs: Tensor


class Steps:
    """One step again and again, all of its state on the device."""

    def __init__(
        self, run: StaticRun, step: Callable[[Seen], None], *, compiled: bool = False, buckets: bool = True
    ) -> None:
        self.run, self.step = run, step
        self.buckets = buckets  # else the step sees all slots, and knows by itself which are filled
        self.cuda = run.sight.is_cuda
        self.compiled = compiled and self.cuda
        if self.compiled:
            options = ONE_ROW if run.rows * run.beams == 1 else {}
            self.step = torch.compile(step, dynamic=False, fullgraph=True, options=options)
        self.pool = torch.cuda.graph_pool_handle() if self.cuda else None
        self.views: dict[int, Seen] = {}  # by how many slots they see
        self.graphs: dict[int, torch.cuda.CUDAGraph] = {}

    def __call__(self, number: int) -> None:
        """Make step `number`, the first that reads a written token being 1."""
        filled = self.run.start + number * self.run.beams
        slots = min(self._bucket(filled), self.run.length) if self.buckets else self.run.length
        if slots in self.graphs:
            self.graphs[slots].replay()
        elif slots in self.views and self.cuda:
            self.graphs[slots] = capture(partial(self.step, self.views[slots]), self.pool)
            self.graphs[slots].replay()
        else:
            # The first step of a bucket runs as it is: it compiles and loads kernels, which a capture cannot wait for.
            seen = self.views.setdefault(slots, self.run.seen(slots))
            with _many_versions() if self.compiled else nullcontext():
                self.step(seen)

    def _bucket(self, slots: int) -> int:
        buckets = -(-slots // BUCKET)
        return BUCKET * (1 << (buckets - 1).bit_length() if self.compiled else buckets)


def capture(step: Callable[[], None], pool: Any) -> torch.cuda.CUDAGraph:
    """A step as a CUDA graph; nothing is computed yet.

    What `torch.cuda.graph` does, but for emptying torch's store of memory, which the next batch still needs.
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


def _many_versions() -> AbstractContextManager[object]:
    """The compiler makes a version for each bucket and each shape of batch, and would soon think that too many."""
    patched: AbstractContextManager[object] = torch._dynamo.config.patch(
        recompile_limit=512, accumulated_recompile_limit=4096
    )
    return patched


def go_on(steps: Steps, most: int, done: Tensor) -> None:
    """Make all steps after the first choice, or as many as it takes until all rows are done."""
    for number in range(1, most):
        steps(number)
        if number % LOOK == 0 and bool(done.all()):
            return


class Greedy:
    """The state of greedy decoding: what was written, and who has ended."""

    def __init__(self, run: StaticRun, end: tuple[int, ...], most: int) -> None:
        self.run, self.end = run, end
        device = run.sight.device
        self.token = torch.zeros(run.rows, 1, dtype=torch.long, device=device)
        self.ended = torch.zeros(run.rows, dtype=torch.bool, device=device)
        self.written = torch.full((run.rows, most), -1, dtype=torch.long, device=device)
        self.logprobs = torch.zeros(run.rows, most, dtype=torch.float64, device=device)
        self.count = torch.zeros(1, dtype=torch.long, device=device)

    @property
    def state(self) -> list[Tensor]:
        """What a step changes, besides what it writes down: put back, the same steps can be made again."""
        return [self.token, self.ended, self.count]

    def choose(self, logits: Tensor) -> None:
        """Take the likeliest token of each row (N, V); rows that have ended write nothing more."""
        best = logits.argmax(-1)
        exact = torch.promote_types(logits.dtype, torch.float32)
        score = logits.log_softmax(-1, dtype=exact).gather(1, best[:, None])[:, 0].double()
        self.written.index_copy_(1, self.count, torch.where(self.ended, -1, best)[:, None])
        self.logprobs.index_copy_(1, self.count, torch.where(self.ended, 0.0, score)[:, None])
        self.ended.logical_or_(is_any_of(best, self.end))
        self.token.copy_(best[:, None])
        self.count.add_(1)

    def step(self, seen: Seen) -> None:
        """One token a row: read it, choose the next."""
        self.choose(self.run.logits(self.token, seen))


def is_any_of(token: Tensor, some: tuple[int, ...]) -> Tensor:
    """True where a token is one of these few."""
    out = torch.zeros_like(token, dtype=torch.bool)
    for one in some:
        out = out | (token == one)
    return out


def network_of_steps(run: Run, rows: int, *, compiled: bool) -> Decoder | Seq2Seq:
    """The network that steps of so many rows run: for a single compiled row, with its products written as sums."""
    if compiled and rows == 1 and run.tokens.is_cuda:
        return with_linears(run.network, OneRowLinear)
    return run.network


def one_row_kernels(run: Run) -> Any:
    """`one_row_step`, where this is one row on a GPU of a network that it knows; else None."""
    if len(run.tokens) != 1 or not run.tokens.is_cuda or not has_triton():
        return None
    from qkv.decode import one_row_step  # loads Triton, which only GPUs have

    return one_row_step if one_row_step.fits(run.network) else None


def greedy_steps(run: Run, end: tuple[int, ...], most: int, *, compiled: bool = False) -> tuple[Steps, Greedy]:
    """A fresh run, its prompts read and its first tokens chosen, and the steps that choose the others."""
    kernels = one_row_kernels(run)
    network = None if kernels else network_of_steps(run, len(run.tokens), compiled=compiled)
    static = StaticRun(run, most, network=network)
    greedy = Greedy(static, end, most)
    greedy.choose(static.first)
    if kernels:
        return Steps(static, kernels.OneRowStep(static, greedy), buckets=False), greedy
    return Steps(static, greedy.step, compiled=compiled), greedy


def write_greedy(run: Run, end: tuple[int, ...], most: int, *, compiled: bool = False) -> Written:
    """Write up to `most` tokens to each row of a fresh run, always the likeliest.

    `compiled` is faster a step and makes the first one wait for the compiler: for long texts and many of them. One row
    of a network that `one_row_step` knows needs no compiler.
    """
    steps, greedy = greedy_steps(run, end, most, compiled=compiled)
    go_on(steps, most, greedy.ended)
    return Written(greedy.written, greedy.logprobs)
