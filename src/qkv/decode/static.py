"""Greedy decoding without waiting for the host: static caches, CUDA graphs, and compiled steps where asked for.

A step (read one token a row, write its keys and values, choose the next) is captured once as a CUDA graph and then
replayed; each replay reads the token that the last one chose, so the host sends one command a token and looks at the
result only every few steps, to see whether all rows have ended. The step's cost follows the filled part of the cache:
it is captured anew for each bucket of slots, over a view of the same cache that ends with the bucket.

On a CPU the same code runs without graphs, which is how it is tested.

R rows, V vocabulary, L slots
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from qkv.blocks import CrossCache, SelfCache
from qkv.decode.run import Run
from qkv.models import Decoder, Seq2Seq

BUCKET = 256
"""How many slots a captured step sees more than the last one."""
LOOK = 16
"""After how many steps the host looks whether all rows have ended."""


@dataclass
class Written:
    """What greedy decoding wrote: tokens (R, N) and their log-probabilities, the end included, −1 after it."""

    tokens: Tensor
    logprobs: Tensor


class StaticCache(SelfCache):
    """A static cache of which attention is shown the first `seen` slots: views, so that nothing moves."""

    def __init__(self, cache: SelfCache, seen: int) -> None:
        self.static = True
        self.uniform = False
        self.keys = [k[:, :, :seen] for k in cache.keys]
        self.values = [v[:, :, :seen] for v in cache.values]
        self.segment = cache.segment[:, :seen]
        self.position = cache.position[:, :seen]
        self.cursor = cache.cursor
        self.filled = 0
        self._slots = torch.zeros(0, device=cache.cursor.device, dtype=torch.long)


class Steps:
    """Greedy steps over one batch, all state on the device."""

    def __init__(self, run: Run, end: tuple[int, ...], most: int, *, compiled: bool = False) -> None:
        self.network, self.cross, self.compiled = run.network, run.cross, compiled
        self.rows, self.start = run.tokens.shape
        self.most = most
        device = run.tokens.device
        self.cache = run.network.new_cache(self.rows, self.start + most, static=True)
        self.end = torch.tensor(end, device=device, dtype=torch.long)
        self.token = torch.zeros(self.rows, dtype=torch.long, device=device)
        self.ended = torch.zeros(self.rows, dtype=torch.bool, device=device)
        self.written = torch.full((self.rows, most), -1, dtype=torch.long, device=device)
        self.logprobs = torch.zeros(self.rows, most, dtype=torch.float64, device=device)
        self.count = torch.zeros((), dtype=torch.long, device=device)
        self._steps: dict[int, Callable[[], None]] = {}

    def choose(self, logits: Tensor) -> None:
        """Take the likeliest token of each row; rows that have ended write nothing more."""
        best = logits.argmax(-1)
        exact = torch.promote_types(logits.dtype, torch.float32)
        score = logits.to(exact).log_softmax(-1).gather(1, best[:, None])[:, 0].double()
        self.written.index_copy_(1, self.count[None], torch.where(self.ended, -1, best)[:, None])
        self.logprobs.index_copy_(1, self.count[None], torch.where(self.ended, 0.0, score)[:, None])
        self.ended |= torch.isin(best, self.end)
        self.token.copy_(best)
        self.count += 1

    def step(self, cache: SelfCache) -> None:
        """One token a row: read it, choose the next."""
        self.choose(forward(self.network, self.token[:, None], None, cache, self.cross))

    def of_bucket(self, seen: int) -> Callable[[], None]:
        """The step that sees so many slots, captured when it is first needed."""
        if seen not in self._steps:
            cache = StaticCache(self.cache, seen)
            if self.token.is_cuda:
                self._steps[seen] = self._capture(cache)
            else:
                self._steps[seen] = lambda: self.step(cache)
        return self._steps[seen]

    def _capture(self, cache: SelfCache) -> Callable[[], None]:
        state = (self.cache.cursor, self.cache.segment, self.token, self.ended, self.count)
        saved = [t.clone() for t in state]
        step: Callable[[SelfCache], None] = self.step
        if self.compiled:
            # At few rows a step is all matrix-vector products, which the compiler's own kernels read faster.
            few: dict[str, Any] = {"coordinate_descent_tuning": True} if self.rows <= 4 else {}
            step = torch.compile(self.step, dynamic=False, fullgraph=True, options=few)
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):  # warming up moves the state: it is put back afterwards
            for _ in range(3):
                step(cache)
                for tensor, value in zip(state, saved, strict=True):
                    tensor.copy_(value)
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            step(cache)
        return graph.replay


def forward(
    network: Decoder | Seq2Seq, ids: Tensor, segment: Tensor | None, cache: SelfCache, cross: CrossCache | None
) -> Tensor:
    """The logits (R, V) of what comes after the newest tokens."""
    if isinstance(network, Seq2Seq):
        assert cross is not None
        x, _ = network.hidden(ids, cross, segment, cache=cache)
    else:
        x, _ = network.hidden(ids, segment, cache=cache)
    return network.head.read(x[:, -1])


def write_greedy(run: Run, end: tuple[int, ...], most: int, *, compiled: bool = False) -> Written:
    """Write up to `most` tokens to each row of a fresh run, always the likeliest.

    `compiled` is faster a step and makes the first one wait for the compiler: for long texts and many of them.
    """
    steps = Steps(run, end, most, compiled=compiled)
    segment = None if bool((run.tokens >= 0).all()) else (run.tokens >= 0).long()
    steps.choose(forward(steps.network, run.tokens.clamp(min=0), segment, steps.cache, steps.cross))
    for done in range(1, most):
        slots = steps.start + done
        steps.of_bucket(min(-(-slots // BUCKET) * BUCKET, steps.cache.length))()
        if done % LOOK == 0 and bool(steps.ended.all()):
            break
    return Written(steps.written, steps.logprobs)
