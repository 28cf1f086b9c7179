"""Beam search: keep the best B continuations at each step.

A hypothesis of n tokens is ranked by its normalized score: its log-probability divided by n^α, or by GNMT's divisor
((5 + n) / 6)^α. n counts the end-of-sequence token. The search of a prompt stops when no running hypothesis can beat
the finished ones. The log-probability of a running hypothesis can only decrease, and it is negative. So its final
normalized score is at most its present log-probability divided by the largest divisor it can still get: the divisor of
the maximum length if α > 0, or of the next length if α ≤ 0.

N prompts, B beams, V vocabulary, K candidates
"""

from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

from qkv.decode.filters import NEG_INF, make_filters
from qkv.decode.options import GenerationOptions, length_divisor
from qkv.decode.result import SearchCandidate, SearchStep
from qkv.decode.runner import ModelRunner
from qkv.decode.sampling import fast_topk


class BeamCandidate(NamedTuple):
    """A running hypothesis plus one token."""

    score: float  # the log-probability of all tokens
    beam: int
    token: int


@dataclass
class Hypothesis:
    """A finished sequence."""

    ids: list[int]  # new tokens only
    normalized_score: float  # the log-probability divided by the length divisor
    ended: bool  # whether the last token is an end-of-sequence token


@dataclass
class BeamState:
    """The state of the search for one prompt."""

    running: list[list[int]]  # the new tokens of each beam
    finished: list[Hypothesis] = field(default_factory=list)
    search_steps: list[SearchStep] = field(default_factory=list)
    done: bool = False

    def add_finished(self, hypothesis: Hypothesis, max_kept: int) -> None:
        """Add a finished hypothesis, and keep the best `max_kept`. Of equally good hypotheses, the earlier is kept."""
        self.finished.append(hypothesis)
        self.finished.sort(key=lambda h: -h.normalized_score)
        del self.finished[max_kept:]

    def report_step(self, step: SearchStep, options: GenerationOptions) -> None:
        """Store a step, and pass it to the caller's callback, if the options request this."""
        if options.return_search_steps:
            self.search_steps.append(step)
        if options.on_search_step is not None:
            options.on_search_step(step)

    def advance(
        self, candidates: list[BeamCandidate], options: GenerationOptions, length: int, eos_token_ids: tuple[int, ...]
    ) -> list[BeamCandidate]:
        """Finish, keep or drop each candidate of one step. Returns the B new running candidates.

        `candidates` are sorted, best first. If fewer than B can run on, the rest are placeholders with a score of −∞.
        """
        is_last = length == options.max_tokens
        running: list[BeamCandidate] = []
        kept: set[int] = set()
        for rank, candidate in enumerate(candidates):
            ended = candidate.token in eos_token_ids
            if ended or is_last:
                # A candidate that ends is dropped if B others are better.
                if rank < options.beam:
                    ids = [*self.running[candidate.beam], candidate.token]
                    normalized_score = candidate.score / length_divisor(options, length)
                    self.add_finished(Hypothesis(ids, normalized_score, ended), options.beam)
                    kept.add(rank)
            elif len(running) < options.beam:
                running.append(candidate)
                kept.add(rank)
        if options.return_search_steps or options.on_search_step is not None:
            described = [
                SearchCandidate(c.beam, c.token, c.score, rank in kept, c.token in eos_token_ids)
                for rank, c in enumerate(candidates)
            ]
            self.report_step(SearchStep(described), options)
        self.done = not running or _is_done(self, options, length, running[0].score)
        return running + [BeamCandidate(NEG_INF, 0, 0)] * (options.beam - len(running))


def beam_search(runner: ModelRunner, options: GenerationOptions, eos_token_ids: tuple[int, ...]) -> list[BeamState]:
    """Run beam search for every prompt of a new runner, with `options.beam` beams per prompt."""
    num_prompts, prompt_length = runner.tokens.shape
    beams = options.beam
    filters = make_filters(options, eos_token_ids, prompt_length)
    states = [BeamState([[] for _ in range(beams)]) for _ in range(num_prompts)]
    active = states  # the searches that are not done, in the order of the runner's sequences

    logits = runner.prefill()  # (N, V)
    device = logits.device
    runner.expand_beams(beams)
    logits = logits.repeat_interleave(beams, dim=0)
    # All beams of a prompt are equal at first. Only the first may continue, or every candidate would occur B times.
    scores = torch.tensor([0.0, *[NEG_INF] * (beams - 1)], dtype=torch.float64, device=device).repeat(num_prompts)

    for length in range(1, options.max_tokens + 1):
        for apply in filters:
            logits = apply(logits, runner.tokens)
        # At most `len(eos_token_ids)` candidates of each beam end, so at least B of these candidates do not end.
        num_candidates = beams * (1 + max(1, len(eos_token_ids)))
        found = best_continuations(logits, scores, beams, num_candidates)
        running = [
            state.advance(candidates, options, length, eos_token_ids)
            for state, candidates in zip(active, found, strict=True)
        ]
        remaining = [n for n, state in enumerate(active) if not state.done]
        if not remaining or length == options.max_tokens:
            break
        chosen = [(n, candidate) for n in remaining for candidate in running[n]]
        old = [ids for state in active for ids in state.running]  # the generated tokens of each sequence of the runner
        parents = [n * beams + candidate.beam for n, candidate in chosen]
        indices = torch.tensor(parents, device=device)
        if len(remaining) < len(active):
            runner.keep(indices)
        else:
            moves = [(old[row], old[parent]) for row, parent in enumerate(parents) if row != parent]
            shared = min((_common_prefix_length(*pair) for pair in moves), default=length - 1)
            runner.reorder(indices, shared_prefix=prompt_length + shared)
        active = [active[n] for n in remaining]
        new = [[*old[parent], candidate.token] for parent, (_, candidate) in zip(parents, chosen, strict=True)]
        for n, state in enumerate(active):
            state.running = new[n * beams : (n + 1) * beams]
        scores = torch.tensor([candidate.score for _, candidate in chosen], dtype=torch.float64, device=device)
        logits = runner.step(torch.tensor([candidate.token for _, candidate in chosen], device=device))
    return states


def best_continuations(
    logits: Tensor, scores: Tensor, num_beams: int, num_candidates: int
) -> list[list[BeamCandidate]]:
    """Return the best candidates of each prompt, best first. `logits` are (N·B, V), the `scores` so far (N·B,)."""
    # The K best candidates of a prompt are among the K best of each of its beams, (N·B, K).
    best, token = fast_topk(logits, min(num_candidates, logits.shape[-1]))
    # log Σ eˣ = max x − log max softmax(x), as in `sampling.logsumexp`.
    normalizer = best[:, 0].double() - logits.softmax(-1).gather(1, token[:, :1])[:, 0].double().log()
    best = torch.where(best == NEG_INF, best.double(), best.double() + (scores - normalizer)[:, None])
    best, token = best.view(len(best) // num_beams, -1), token.view(len(best) // num_beams, -1)  # (N, B·K)
    per_beam = best.shape[1] // num_beams
    best, index = best.topk(min(num_candidates, best.shape[1]))
    columns = (best.tolist(), (index // per_beam).tolist(), token.gather(1, index).tolist())
    return [
        [BeamCandidate(*values) for values in zip(*row, strict=True) if values[0] > NEG_INF]
        for row in zip(*columns, strict=True)
    ]


def _is_done(state: BeamState, options: GenerationOptions, length: int, best_running_score: float) -> bool:
    """Return whether there are B finished hypotheses, and no running one can beat the worst of them."""
    if len(state.finished) < options.beam:
        return False
    best_length = options.max_tokens if options.length_penalty > 0 else length + 1
    return best_running_score / length_divisor(options, best_length) <= state.finished[-1].normalized_score


def _common_prefix_length(a: list[int], b: list[int]) -> int:
    """Return how many leading tokens two sequences of equal length share. Their caches are equal there."""
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=True)) if x != y), len(a))
