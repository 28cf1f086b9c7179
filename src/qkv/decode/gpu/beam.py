"""Beam search on a GPU that does not wait for the CPU: the search of `decode/beam.py`, with its state in tensors.

Each step stores the tokens and the parents of the beams. A finished hypothesis stores the step and the beam at which it
ended. Its tokens are collected backwards from there when the search is done. A prompt whose search is done stays in the
batch, because shapes never change, and its new results are ignored. Filters that depend on which tokens came before,
and `return_search_steps`, are not supported here. The reference, `decode/beam.py`, runs such calls.

N prompts, B beams, V vocabulary, W candidates
"""

import torch
from torch import Tensor

from qkv.decode.beam import BeamState, Hypothesis
from qkv.decode.filters import NEG_INF
from qkv.decode.gpu.graphs import GraphedSteps, is_in, run_steps
from qkv.decode.gpu.static_runner import CacheView, StaticRunner
from qkv.decode.options import GenerationOptions, length_divisor
from qkv.decode.runner import ModelRunner

TOPK_GROUP = 64
"""The number of neighbouring logits that form a group in `grouped_topk`."""


class BeamTensors:
    """The state of the searches of all prompts."""

    def __init__(self, runner: StaticRunner, options: GenerationOptions, eos_token_ids: tuple[int, ...]) -> None:
        self.runner, self.options, self.eos_token_ids = runner, options, eos_token_ids
        prompts, beams, max_tokens = runner.batch_size, options.beam, options.max_tokens
        device = runner.mask.device
        # At most `len(eos_token_ids)` candidates of each beam end, so at least B of these candidates do not end.
        self.num_candidates = beams * (1 + max(1, len(eos_token_ids)))
        self.token = torch.zeros(prompts, beams, dtype=torch.long, device=device)
        self.score = torch.full((prompts, beams), NEG_INF, dtype=torch.float64, device=device)
        self.score[:, 0] = 0.0  # all beams of a prompt are equal at first, so only the first may continue
        self.tokens = torch.zeros(max_tokens, prompts, beams, dtype=torch.long, device=device)
        self.parents = torch.zeros_like(self.tokens)
        self.normalized_scores = torch.full_like(self.score, NEG_INF)  # the scores of finished hypotheses, best first
        # The length, the beam and the last token of each finished hypothesis.
        self.finished = torch.zeros(prompts, beams, 3, dtype=torch.long, device=device)
        self.done = torch.zeros(prompts, dtype=torch.bool, device=device)
        self.num_steps = torch.zeros(1, dtype=torch.long, device=device)
        factors = [length_divisor(options, length) for length in range(1, max_tokens + 2)]
        self.length_divisors = torch.tensor(factors, dtype=torch.float64, device=device)
        self.beam_index = torch.arange(beams, device=device)
        self.suppressed = torch.tensor(options.suppress_tokens, dtype=torch.long, device=device)

    def step(self, view: CacheView) -> None:
        """Run the model on the newest token of each hypothesis, and keep the best continuations."""
        self.advance(self.runner.logits(self.token, view), view)

    def advance(self, logits: Tensor, view: CacheView) -> None:
        """Finish, keep or drop the continuations with logits (N·B, V), as `BeamState.advance` does."""
        best, beam, token = self.best_continuations(logits)  # (N, W) each, best first
        is_possible = best > NEG_INF
        closing = is_in(token, self.eos_token_ids) | (self.num_steps + 1 == self.options.max_tokens)
        # A candidate that ends is dropped if B others are better.
        beams = self.options.beam
        self._finish(best[:, :beams], beam[:, :beams], token[:, :beams], (is_possible & closing)[:, :beams])
        running = is_possible & ~closing
        order = running.cumsum(1) - 1
        # (N, B, W): which candidate each beam takes
        chosen = running[:, None] & (order[:, None] == self.beam_index[:, None])
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
        """Return the best W continuations of each prompt: their scores, the beams that they continue, their tokens."""
        logits = self._filter(logits)
        largest = logits.amax(-1).double()
        dtype = torch.promote_types(logits.dtype, torch.float32)
        probability = logits.softmax(-1, dtype=dtype).amax(-1).double()
        before = self.score.flatten() - torch.where(largest == NEG_INF, 0.0, largest - probability.log())
        # The W best candidates of a prompt are among the W best of each of its beams.
        best, token = grouped_topk(logits, min(self.num_candidates, logits.shape[-1]))
        best = (best.double() + before[:, None]).view(self.runner.batch_size, -1)  # (N, B·W)
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
        """Add the candidates (N, B) where `closing` is true, and keep the best B finished hypotheses of each prompt."""
        closing = closing & ~self.done[:, None]
        new_scores = torch.where(closing, score / self.length_divisors[self.num_steps], NEG_INF)
        scores = torch.cat([self.normalized_scores, new_scores], dim=1)
        length = torch.where(closing, self.num_steps + 1, 0)
        found = torch.cat([self.finished, torch.stack([length, beam, token], dim=-1)], dim=1)
        order = scores.argsort(dim=1, descending=True, stable=True)[:, : self.options.beam]
        self.normalized_scores.copy_(scores.gather(1, order))
        self.finished.copy_(found.gather(1, order[:, :, None].expand(-1, -1, 3)))

    def _is_done(self, best_running_score: Tensor) -> Tensor:
        """Return whether there are B finished hypotheses and no running one can beat the worst of them, (N,)."""
        is_rising = self.options.length_penalty > 0
        best_length = self.options.max_tokens - 1 if is_rising else self.num_steps + 1
        best_divisor = self.length_divisors[best_length]
        return (self.finished[:, -1, 0] > 0) & (best_running_score / best_divisor <= self.normalized_scores[:, -1])

    def to_states(self) -> list[BeamState]:
        """Return the hypotheses in the form of the reference. This waits for the GPU."""
        tokens, parents, found, scores = (
            t.cpu() for t in (self.tokens, self.parents, self.finished, self.normalized_scores)
        )
        length, beam, last = found.unbind(-1)  # (N, B)
        written = torch.zeros(*length.shape, len(tokens), dtype=torch.long)
        for place in reversed(range(len(tokens))):
            inside = place < length - 1
            written[:, :, place] = torch.where(inside, tokens[place].gather(1, beam), last)
            beam = torch.where(inside, parents[place].gather(1, beam), beam)
        rows = zip(written.tolist(), length.tolist(), scores.tolist(), strict=True)
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
    """Return the k largest logits of each row and their indices, largest first, in two passes as `sampling.fast_topk`.

    Here neighbouring logits form a group, because a GPU reads neighbours faster.
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
    runner: ModelRunner,
    options: GenerationOptions,
    eos_token_ids: tuple[int, ...],
    *,
    runner_class: type[StaticRunner] = StaticRunner,
) -> list[BeamState]:
    """Run beam search for every prompt of a new runner, as `beam_search` does."""
    static = runner_class(runner, options.max_tokens, num_beams=options.beam)
    beams = BeamTensors(static, options, eos_token_ids)
    beams.advance(static.prefill_logits.repeat_interleave(options.beam, dim=0), static.view(static.num_slots))
    run_steps(GraphedSteps(static, beams.step, compiled=options.compile), options.max_tokens, beams.done)
    return beams.to_states()
