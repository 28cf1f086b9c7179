"""Beam search: keep the best B ways on at each step. Ranking sequences is the last of decoding's four roles.

A hypothesis of n tokens (the end counts) is worth its log-probability divided by n^α (or GNMT's factor). The search
for one source stops only when no way on could still beat what is finished: log-probabilities only fall, so the most
that a running hypothesis can be worth is its score now divided by the factor that is kindest to it, the one at the
longest length for α > 0 and the one at the next length for α ≤ 0.

N sources, B beams, V vocabulary
"""

from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

from qkv.decode.filters import make_filters
from qkv.decode.options import GenerationOptions, length_divisor
from qkv.decode.result import SearchCandidate, SearchStep
from qkv.decode.runner import ModelRunner
from qkv.decode.sampling import fast_topk

NEG_INF = float("-inf")


class BeamCandidate(NamedTuple):
    """One way on: which of a source's hypotheses it continues, with which token, and the log-probability of it all."""

    score: float
    beam: int
    token: int


@dataclass
class Hypothesis:
    """A finished sequence: its new tokens (with the end, where it has one), what it is worth, and whether it ended."""

    ids: list[int]
    normalized_score: float
    ended: bool


@dataclass
class BeamState:
    """The state of one source's search."""

    running: list[list[int]]  # the new tokens of each of its rows
    finished: list[Hypothesis] = field(default_factory=list)
    search_steps: list[SearchStep] = field(default_factory=list)
    done: bool = False

    def add_finished(self, hypothesis: Hypothesis, max_kept: int) -> None:
        """Keep the best `keep`; of equals, the one that came first."""
        self.finished.append(hypothesis)
        self.finished.sort(key=lambda h: -h.normalized_score)
        del self.finished[max_kept:]

    def advance(
        self, candidates: list[BeamCandidate], options: GenerationOptions, length: int, eos_token_ids: tuple[int, ...]
    ) -> list[BeamCandidate]:
        """Sort one step's ways on, best first, into finished and running; returns those that go on, B of them.

        Where fewer go on, the rest of the places are filled up with ways that are worth nothing.
        """
        last = length == options.max_tokens
        going: list[BeamCandidate] = []
        kept: set[int] = set()
        for rank, way in enumerate(candidates):
            if way.token in eos_token_ids or last:
                # An end that B better ways push out of the beam is pushed out too.
                if rank < options.beam:
                    ids = [*self.running[way.beam], way.token]
                    worth = way.score / length_divisor(options, length)
                    self.add_finished(Hypothesis(ids, worth, way.token in eos_token_ids), options.beam)
                    kept.add(rank)
            elif len(going) < options.beam:
                going.append(way)
                kept.add(rank)
        if options.return_search_steps:
            self.search_steps.append(
                SearchStep(
                    [
                        SearchCandidate(w.beam, w.token, w.score, r in kept, w.token in eos_token_ids)
                        for r, w in enumerate(candidates)
                    ]
                )
            )
        self.done = not going or _is_done(self, options, length, going[0].score)
        going += [BeamCandidate(NEG_INF, 0, 0)] * (options.beam - len(going))
        return going


def beam_search(runner: ModelRunner, options: GenerationOptions, eos_token_ids: tuple[int, ...]) -> list[BeamState]:
    """Search every row of a fresh run; each of its rows becomes `options.beam` rows."""
    sources, beams = runner.tokens.shape[0], options.beam
    start = runner.tokens.shape[1]
    filters = make_filters(options, eos_token_ids, start)
    searches = [BeamState([[] for _ in range(beams)]) for _ in range(sources)]
    live = searches  # those whose rows still run, in the order of their rows

    logits = runner.prefill()  # (N, V)
    device = logits.device
    runner.expand_beams(beams)
    logits = logits.repeat_interleave(beams, dim=0)
    # All beams hold the same prompt: only one of them counts.
    scores = torch.tensor([0.0, *[NEG_INF] * (beams - 1)], dtype=torch.float64, device=device).repeat(sources)

    for length in range(1, options.max_tokens + 1):
        for apply in filters:
            logits = apply(logits, runner.tokens)
        # Each hypothesis may end in `len(end)` ways: that many more candidates leave B that go on.
        every = best_continuations(logits, scores, beams, beams * (1 + max(1, len(eos_token_ids))))
        going = [search.advance(ways, options, length, eos_token_ids) for search, ways in zip(live, every, strict=True)]
        staying = [n for n, search in enumerate(live) if not search.done]
        if not staying or length == options.max_tokens:
            break
        chosen = [(n, way) for n in staying for way in going[n]]
        old = [ids for search in live for ids in search.running]  # what each row holds
        parents = [n * beams + way.beam for n, way in chosen]
        rows = torch.tensor(parents, device=device)
        if len(staying) < len(live):
            runner.keep(rows)
        else:
            moves = [(old[row], old[parent]) for row, parent in enumerate(parents) if row != parent]
            runner.reorder(
                rows, shared_prefix=start + min((_common_prefix_length(*pair) for pair in moves), default=length - 1)
            )
        live = [live[n] for n in staying]
        written = [[*old[parent], way.token] for parent, (_, way) in zip(parents, chosen, strict=True)]
        for n, search in enumerate(live):
            search.running = written[n * beams : (n + 1) * beams]
        scores = torch.tensor([way.score for _, way in chosen], dtype=torch.float64, device=device)
        logits = runner.step(torch.tensor([way.token for _, way in chosen], device=device))
    return searches


def best_continuations(
    logits: Tensor, scores: Tensor, num_beams: int, num_candidates: int
) -> list[list[BeamCandidate]]:
    """The `wide` best ways on of each source, best first; logits (N·B, V), scores so far (N·B,)."""
    best, token = fast_topk(
        logits, min(num_candidates, logits.shape[-1])
    )  # (N·B, K): a row's best are among its source's best
    # log Σ eˣ = max x − log softmax(x) there, as `log_total` has it.
    total = best[:, 0].double() - logits.softmax(-1).gather(1, token[:, :1])[:, 0].double().log()
    best = torch.where(best == NEG_INF, best.double(), best.double() + (scores - total)[:, None])
    best, token = best.view(len(best) // num_beams, -1), token.view(len(best) // num_beams, -1)  # (N, B·K)
    each = best.shape[1] // num_beams
    best, index = best.topk(min(num_candidates, best.shape[1]))
    token = token.gather(1, index)
    columns = (best.tolist(), (index // each).tolist(), token.tolist())
    return [
        [BeamCandidate(*way) for way in zip(*row, strict=True) if way[0] > NEG_INF]
        for row in zip(*columns, strict=True)
    ]


def _is_done(state: BeamState, options: GenerationOptions, length: int, best_running_score: float) -> bool:
    """Whether nothing still running can be worth more than the worst hypothesis that would be given."""
    if len(state.finished) < options.beam:
        return False
    kindest = options.max_tokens if options.length_penalty > 0 else length + 1
    return best_running_score / length_divisor(options, kindest) <= state.finished[-1].normalized_score


def _common_prefix_length(a: list[int], b: list[int]) -> int:
    """How many first tokens two rows share: what the cache holds of those is the same in both."""
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=True)) if x != y), len(a))
