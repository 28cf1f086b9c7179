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

from qkv.blocks.kernels.gpu import has_triton
from qkv.decode.gpu.matvec_linear import MatvecLinear, replace_linears
from qkv.decode.gpu.static_runner import CacheView, StaticRunner
from qkv.decode.runner import ModelRunner
from qkv.models import Decoder, Seq2Seq

SLOTS_PER_BUCKET = 256
"""How many slots a captured step sees more than the last one; compiled ones see twice as many, as they cost a wait."""
STEPS_BETWEEN_CHECKS = 16
"""After how many steps the host looks whether all rows have ended."""
MATVEC_COMPILE_OPTIONS: dict[str, Any] = {"coordinate_descent_tuning": True}
"""What the compiler is told where a step is all products of a matrix and a vector."""


@dataclass
class GreedyOutput:
    """What greedy decoding wrote: tokens (N, T) and their log-probabilities, the end included, −1 after it."""

    tokens: Tensor
    logprobs: Tensor


class GraphedSteps:
    """One step again and again, all of its state on the device."""

    def __init__(
        self,
        runner: StaticRunner,
        step: Callable[[CacheView], None],
        *,
        compiled: bool = False,
        uses_buckets: bool = True,
    ) -> None:
        self.runner, self.step = runner, step
        self.uses_buckets = uses_buckets  # else the step sees all slots, and knows by itself which are filled
        self.cuda = runner.mask.is_cuda
        self.compiled = compiled and self.cuda
        if self.compiled:
            options = MATVEC_COMPILE_OPTIONS if runner.batch_size * runner.num_beams == 1 else {}
            self.step = torch.compile(step, dynamic=False, fullgraph=True, options=options)
        self.pool = torch.cuda.graph_pool_handle() if self.cuda else None
        self.views: dict[int, CacheView] = {}  # by how many slots they see
        self.graphs: dict[int, torch.cuda.CUDAGraph] = {}

    def __call__(self, step_number: int) -> None:
        """Make step `number`, the first that reads a written token being 1."""
        filled = self.runner.prompt_length + step_number * self.runner.num_beams
        slots = min(self._bucket(filled), self.runner.num_slots) if self.uses_buckets else self.runner.num_slots
        if slots in self.graphs:
            self.graphs[slots].replay()
        elif slots in self.views and self.cuda:
            self.graphs[slots] = capture(partial(self.step, self.views[slots]), self.pool)
            self.graphs[slots].replay()
        else:
            # The first step of a bucket runs as it is: it compiles and loads kernels, which a capture cannot wait for.
            seen = self.views.setdefault(slots, self.runner.view(slots))
            with _raised_recompile_limit() if self.compiled else nullcontext():
                self.step(seen)

    def _bucket(self, slots: int) -> int:
        buckets = -(-slots // SLOTS_PER_BUCKET)
        return SLOTS_PER_BUCKET * (1 << (buckets - 1).bit_length() if self.compiled else buckets)


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


def _raised_recompile_limit() -> AbstractContextManager[object]:
    """The compiler makes a version for each bucket and each shape of batch, and would soon think that too many."""
    patched: AbstractContextManager[object] = torch._dynamo.config.patch(
        recompile_limit=512, accumulated_recompile_limit=4096
    )
    return patched


def run_steps(steps: GraphedSteps, max_new_tokens: int, done: Tensor) -> None:
    """Make all steps after the first choice, or as many as it takes until all rows are done."""
    for number in range(1, max_new_tokens):
        steps(number)
        if number % STEPS_BETWEEN_CHECKS == 0 and bool(done.all()):
            return


class GreedyState:
    """The state of greedy decoding: what was written, and who has ended."""

    def __init__(self, runner: StaticRunner, eos_token_ids: tuple[int, ...], max_new_tokens: int) -> None:
        self.runner, self.eos_token_ids = runner, eos_token_ids
        device = runner.mask.device
        self.token = torch.zeros(runner.batch_size, 1, dtype=torch.long, device=device)
        self.ended = torch.zeros(runner.batch_size, dtype=torch.bool, device=device)
        self.written = torch.full((runner.batch_size, max_new_tokens), -1, dtype=torch.long, device=device)
        self.logprobs = torch.zeros(runner.batch_size, max_new_tokens, dtype=torch.float64, device=device)
        self.num_written = torch.zeros(1, dtype=torch.long, device=device)

    @property
    def state(self) -> list[Tensor]:
        """What a step changes, besides what it writes down: put back, the same steps can be made again."""
        return [self.token, self.ended, self.num_written]

    def choose(self, logits: Tensor) -> None:
        """Take the likeliest token of each row (N, V); rows that have ended write nothing more."""
        best = logits.argmax(-1)
        exact = torch.promote_types(logits.dtype, torch.float32)
        score = logits.log_softmax(-1, dtype=exact).gather(1, best[:, None])[:, 0].double()
        self.written.index_copy_(1, self.num_written, torch.where(self.ended, -1, best)[:, None])
        self.logprobs.index_copy_(1, self.num_written, torch.where(self.ended, 0.0, score)[:, None])
        self.ended.logical_or_(is_in(best, self.eos_token_ids))
        self.token.copy_(best[:, None])
        self.num_written.add_(1)

    def step(self, view: CacheView) -> None:
        """One token a row: read it, choose the next."""
        self.choose(self.runner.logits(self.token, view))


def is_in(token: Tensor, token_ids: tuple[int, ...]) -> Tensor:
    """True where a token is one of these few."""
    out = torch.zeros_like(token, dtype=torch.bool)
    for one in token_ids:
        out = out | (token == one)
    return out


def network_for_steps(runner: ModelRunner, batch_size: int, *, compiled: bool) -> Decoder | Seq2Seq:
    """The network that steps of so many rows run: for a single compiled row, with its products written as sums."""
    if compiled and batch_size == 1 and runner.tokens.is_cuda:
        return replace_linears(runner.network, MatvecLinear)
    return runner.network


def fused_step_module(runner: ModelRunner) -> Any:
    """`one_row_step`, where this is one row on a GPU of a network that it knows; else None."""
    if len(runner.tokens) != 1 or not runner.tokens.is_cuda or not has_triton():
        return None
    from qkv.decode.gpu import fused_step as one_row_step

    return one_row_step if one_row_step.is_supported(runner.network) else None


def greedy_steps(
    runner: ModelRunner, eos_token_ids: tuple[int, ...], max_new_tokens: int, *, compiled: bool = False
) -> tuple[GraphedSteps, GreedyState]:
    """A fresh run, its prompts read and its first tokens chosen, and the steps that choose the others."""
    kernels = fused_step_module(runner)
    network = None if kernels else network_for_steps(runner, len(runner.tokens), compiled=compiled)
    static = StaticRunner(runner, max_new_tokens, network=network)
    greedy = GreedyState(static, eos_token_ids, max_new_tokens)
    greedy.choose(static.prefill_logits)
    if kernels:
        return GraphedSteps(static, kernels.OneRowStep(static, greedy), uses_buckets=False), greedy
    return GraphedSteps(static, greedy.step, compiled=compiled), greedy


def decode_greedy(
    runner: ModelRunner, eos_token_ids: tuple[int, ...], max_new_tokens: int, *, compiled: bool = False
) -> GreedyOutput:
    """Write up to `most` tokens to each row of a fresh run, always the likeliest.

    `compiled` is faster a step and makes the first one wait for the compiler: for long texts and many of them. One row
    of a network that `one_row_step` knows needs no compiler.
    """
    steps, greedy = greedy_steps(runner, eos_token_ids, max_new_tokens, compiled=compiled)
    run_steps(steps, max_new_tokens, greedy.ended)
    return GreedyOutput(greedy.written, greedy.logprobs)
