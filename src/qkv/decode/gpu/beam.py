"""Beam search without waiting for the host: `beam.py`'s search, all of its state in tensors on the device.

What a step finds is written down as tokens and back-pointers; finished hypotheses keep where they ended, and their
tokens are read off backwards when all is done. Sources that are settled go on without effect, as shapes never change.
`beam.py` stays the reference, and searches where a request asks for more: filters that look at the tokens so far, or
a record of the search.

N sources, B beams, V vocabulary, W ways on that are looked at
"""

import torch
from torch import Tensor

from qkv.decode.beam import BeamState, Hypothesis
from qkv.decode.gpu.graphs import GraphedSteps, is_in, run_steps
from qkv.decode.gpu.static_runner import CacheView, StaticRunner
from qkv.decode.options import GenerationOptions, length_divisor
from qkv.decode.runner import ModelRunner

NEG_INF = float("-inf")
TOPK_GROUP = 64
"""So many neighbours in the vocabulary stand for one another when the best are sought."""


class BeamTensors:
    """The state of all sources' searches."""

    def __init__(self, runner: StaticRunner, options: GenerationOptions, eos_token_ids: tuple[int, ...]) -> None:
        self.runner, self.options, self.eos_token_ids = runner, options, eos_token_ids
        sources, beams, most = runner.batch_size, options.beam, options.max_tokens
        device = runner.mask.device
        # Each hypothesis may end in `len(end)` ways: that many more candidates leave B that go on.
        self.num_candidates = beams * (1 + max(1, len(eos_token_ids)))
        self.token = torch.zeros(sources, beams, dtype=torch.long, device=device)
        self.score = torch.full((sources, beams), NEG_INF, dtype=torch.float64, device=device)
        self.score[:, 0] = 0.0  # all beams hold the same prompt: only one of them counts
        self.tokens = torch.zeros(most, sources, beams, dtype=torch.long, device=device)
        self.parents = torch.zeros_like(self.tokens)
        self.normalized_scores = torch.full_like(self.score, NEG_INF)  # of the finished ones, best first
        self.finished = torch.zeros(
            sources, beams, 3, dtype=torch.long, device=device
        )  # their length, beam, last token
        self.done = torch.zeros(sources, dtype=torch.bool, device=device)
        self.num_steps = torch.zeros(1, dtype=torch.long, device=device)
        factors = [length_divisor(options, length) for length in range(1, most + 2)]
        self.length_divisors = torch.tensor(factors, dtype=torch.float64, device=device)
        self.beam_index = torch.arange(beams, device=device)
        self.suppressed = torch.tensor(options.suppress_tokens, dtype=torch.long, device=device)

    @property
    def state(self) -> list[Tensor]:
        """What a step changes, besides what it writes down: put back, the same steps can be made again."""
        return [self.token, self.score, self.normalized_scores, self.finished, self.done, self.num_steps]

    def step(self, view: CacheView) -> None:
        """Read the newest token of each hypothesis, and take the best ways on."""
        self.advance(self.runner.logits(self.token, view), view)

    def advance(self, logits: Tensor, view: CacheView) -> None:
        """Sort the ways on (N·B, V) into finished and running ones, as `Search.advance` does."""
        best, beam, token = self.best_continuations(logits)  # (N, W) each, best first
        there = best > NEG_INF
        closing = is_in(token, self.eos_token_ids) | (self.num_steps + 1 == self.options.max_tokens)
        # An end that B better ways push out of the beam is pushed out too.
        beams = self.options.beam
        self._finish(best[:, :beams], beam[:, :beams], token[:, :beams], (there & closing)[:, :beams])
        going = there & ~closing
        order = going.cumsum(1) - 1
        chosen = going[:, None] & (order[:, None] == self.beam_index[:, None])  # (N, B, W), each beam one of the ways
        found, index = chosen.any(-1), chosen.int().argmax(-1)  # (N, B)
        score = torch.where(found, best.gather(1, index), NEG_INF)
        parent = torch.where(found, beam.gather(1, index), 0)
        token = torch.where(found, token.gather(1, index), 0)
        self.done.logical_or_(self._is_done(score[:, 0]) | ~found[:, 0])
        self.score.copy_(score)
        self.token.copy_(token)
        self.tokens.index_copy_(0, self.num_steps, token[None])
        self.parents.index_copy_(0, self.num_steps, parent[None])
        view.mask.copy_(view.mask.gather(1, parent[:, :, None].expand_as(view.mask)))
        self.num_steps.add_(1)

    def best_continuations(self, logits: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The best W ways on of each source: their scores, which beam they continue, and with which token."""
        logits = self._filter(logits)
        largest = logits.amax(-1).double()
        exact = torch.promote_types(logits.dtype, torch.float32)
        share = logits.softmax(-1, dtype=exact).amax(-1).double()
        before = self.score.flatten() - torch.where(largest == NEG_INF, 0.0, largest - share.log())
        best, token = grouped_topk(
            logits, min(self.num_candidates, logits.shape[-1])
        )  # a row's best are among its source's best
        best = (best.double() + before[:, None]).view(self.runner.batch_size, -1)  # (N, B·K)
        each = best.shape[1] // self.options.beam
        best, index = best.topk(min(self.num_candidates, best.shape[1]))
        return best, index // each, token.view(self.runner.batch_size, -1).gather(1, index)

    def _filter(self, logits: Tensor) -> Tensor:
        if self.options.suppress_tokens:
            logits = logits.index_fill(1, self.suppressed, NEG_INF)
        if self.options.min_tokens and self.eos_token_ids:
            early = self.num_steps < self.options.min_tokens
            ends = is_in(torch.arange(logits.shape[1], device=logits.device), self.eos_token_ids)
            logits = logits.masked_fill(early & ends, NEG_INF)
        return logits

    def _finish(self, score: Tensor, beam: Tensor, token: Tensor, closing: Tensor) -> None:
        """Keep the best B of those finished before and now; of equals, the one that came first. (N, B) each."""
        closing = closing & ~self.done[:, None]
        worth = torch.cat(
            [self.normalized_scores, torch.where(closing, score / self.length_divisors[self.num_steps], NEG_INF)], dim=1
        )
        length = torch.where(closing, self.num_steps + 1, 0)
        found = torch.cat([self.finished, torch.stack([length, beam, token], dim=-1)], dim=1)
        order = worth.argsort(dim=1, descending=True, stable=True)[:, : self.options.beam]
        self.normalized_scores.copy_(worth.gather(1, order))
        self.finished.copy_(found.gather(1, order[:, :, None].expand(-1, -1, 3)))

    def _is_done(self, best_running_score: Tensor) -> Tensor:
        """Whether nothing still running, (N,) at best, can be worth more than the worst that would be given."""
        rising = self.options.length_penalty > 0
        kindest = (
            self.length_divisors[self.options.max_tokens - 1] if rising else self.length_divisors[self.num_steps + 1]
        )
        return (self.finished[:, -1, 0] > 0) & (best_running_score / kindest <= self.normalized_scores[:, -1])

    def to_states(self) -> list[BeamState]:
        """What was found, as the reference gives it; this waits for the device."""
        tokens, parents, found, worth = (
            t.cpu() for t in (self.tokens, self.parents, self.finished, self.normalized_scores)
        )
        length, beam, last = found.unbind(-1)  # (N, B)
        written = torch.zeros(*length.shape, len(tokens), dtype=torch.long)
        for place in reversed(range(len(tokens))):
            inside = place < length - 1
            written[:, :, place] = torch.where(inside, tokens[place].gather(1, beam), last)
            beam = torch.where(inside, parents[place].gather(1, beam), beam)
        rows = zip(written.tolist(), length.tolist(), worth.tolist(), strict=True)
        return [
            BeamState(
                [],
                [
                    Hypothesis(ids[:count], value, ids[count - 1] in self.eos_token_ids)
                    for ids, count, value in zip(*row, strict=True)
                    if count
                ],
                done=True,
            )
            for row in rows
        ]


def grouped_topk(logits: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The k largest of each row and where they stand, largest first: `topk`, with one look at most of the vocabulary.

    The k largest lie in the k groups of neighbours with the largest maxima, or in what is left over after the last
    group: only those are looked at again.
    """
    groups = logits.shape[1] // TOPK_GROUP
    if groups <= 2 * k:
        return logits.topk(k)
    whole = groups * TOPK_GROUP
    table = logits[:, :whole].unflatten(1, (groups, TOPK_GROUP))
    top = table.amax(-1).topk(k).indices  # (R, k)
    some = table.gather(1, top[:, :, None].expand(-1, -1, TOPK_GROUP)).flatten(1)
    ids = (top[:, :, None] * TOPK_GROUP + torch.arange(TOPK_GROUP, device=logits.device)).flatten(1)
    rest = torch.arange(whole, logits.shape[1], device=logits.device).expand(len(logits), -1)
    some, ids = torch.cat([some, logits[:, whole:]], dim=1), torch.cat([ids, rest], dim=1)
    best, index = some.topk(k)
    return best, ids.gather(1, index)


def static_beam_search(
    runner: ModelRunner, options: GenerationOptions, eos_token_ids: tuple[int, ...]
) -> list[BeamState]:
    """Search every row of a fresh run, as `beam_search` does."""
    static = StaticRunner(runner, options.max_tokens, num_beams=options.beam)
    beams = BeamTensors(static, options, eos_token_ids)
    beams.advance(static.prefill_logits.repeat_interleave(options.beam, dim=0), static.view(static.num_slots))
    run_steps(GraphedSteps(static, beams.step, compiled=options.compile), options.max_tokens, beams.done)
    return beams.to_states()
