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

from qkv.decode.choose import largest
from qkv.decode.filters import filters_of
from qkv.decode.options import Options, length_factor
from qkv.decode.result import Candidate, Step
from qkv.decode.run import Run

NEVER = float("-inf")


class Way(NamedTuple):
    """One way on: which of a source's hypotheses it continues, with which token, and the log-probability of it all."""

    score: float
    beam: int
    token: int


@dataclass
class Hypothesis:
    """A finished sequence: its new tokens (with the end, where it has one), what it is worth, and whether it ended."""

    ids: list[int]
    worth: float
    ended: bool


@dataclass
class Search:
    """The state of one source's search."""

    running: list[list[int]]  # the new tokens of each of its rows
    finished: list[Hypothesis] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)
    done: bool = False

    def add(self, hypothesis: Hypothesis, keep: int) -> None:
        """Keep the best `keep`; of equals, the one that came first."""
        self.finished.append(hypothesis)
        self.finished.sort(key=lambda h: -h.worth)
        del self.finished[keep:]

    def advance(self, ways: list[Way], options: Options, length: int, end: tuple[int, ...]) -> list[Way]:
        """Sort one step's ways on, best first, into finished and running; returns those that go on, B of them.

        Where fewer go on, the rest of the places are filled up with ways that are worth nothing.
        """
        last = length == options.max_tokens
        going: list[Way] = []
        kept: set[int] = set()
        for rank, way in enumerate(ways):
            if way.token in end or last:
                # An end that B better ways push out of the beam is pushed out too.
                if rank < options.beam:
                    ids = [*self.running[way.beam], way.token]
                    worth = way.score / length_factor(options, length)
                    self.add(Hypothesis(ids, worth, way.token in end), options.beam)
                    kept.add(rank)
            elif len(going) < options.beam:
                going.append(way)
                kept.add(rank)
        if options.record:
            self.steps.append(
                Step([Candidate(w.beam, w.token, w.score, r in kept, w.token in end) for r, w in enumerate(ways)])
            )
        self.done = not going or _settled(self, options, length, going[0].score)
        going += [Way(NEVER, 0, 0)] * (options.beam - len(going))
        return going


def beam_search(run: Run, options: Options, end: tuple[int, ...]) -> list[Search]:
    """Search every row of a fresh run; each of its rows becomes `options.beam` rows."""
    sources, beams = run.tokens.shape[0], options.beam
    start = run.tokens.shape[1]
    filters = filters_of(options, end, start)
    searches = [Search([[] for _ in range(beams)]) for _ in range(sources)]
    live = searches  # those whose rows still run, in the order of their rows

    logits = run.prefill()  # (N, V)
    device = logits.device
    run.fork(beams)
    logits = logits.repeat_interleave(beams, dim=0)
    # All beams hold the same prompt: only one of them counts.
    scores = torch.tensor([0.0, *[NEVER] * (beams - 1)], dtype=torch.float64, device=device).repeat(sources)

    for length in range(1, options.max_tokens + 1):
        for apply in filters:
            logits = apply(logits, run.tokens)
        # Each hypothesis may end in `len(end)` ways: that many more candidates leave B that go on.
        every = ways_on(logits, scores, beams, beams * (1 + max(1, len(end))))
        going = [search.advance(ways, options, length, end) for search, ways in zip(live, every, strict=True)]
        staying = [n for n, search in enumerate(live) if not search.done]
        if not staying or length == options.max_tokens:
            break
        chosen = [(n, way) for n in staying for way in going[n]]
        old = [ids for search in live for ids in search.running]  # what each row holds
        parents = [n * beams + way.beam for n, way in chosen]
        rows = torch.tensor(parents, device=device)
        if len(staying) < len(live):
            run.keep(rows)
        else:
            moves = [(old[row], old[parent]) for row, parent in enumerate(parents) if row != parent]
            run.reorder(rows, since=start + min((_alike(*pair) for pair in moves), default=length - 1))
        live = [live[n] for n in staying]
        written = [[*old[parent], way.token] for parent, (_, way) in zip(parents, chosen, strict=True)]
        for n, search in enumerate(live):
            search.running = written[n * beams : (n + 1) * beams]
        scores = torch.tensor([way.score for _, way in chosen], dtype=torch.float64, device=device)
        logits = run.step(torch.tensor([way.token for _, way in chosen], device=device))
    return searches


def ways_on(logits: Tensor, scores: Tensor, beams: int, wide: int) -> list[list[Way]]:
    """The `wide` best ways on of each source, best first; logits (N·B, V), scores so far (N·B,)."""
    best, token = largest(logits, min(wide, logits.shape[-1]))  # (N·B, K): a row's best are among its source's best
    # log Σ eˣ = max x − log softmax(x) there, as `log_total` has it.
    total = best[:, 0].double() - logits.softmax(-1).gather(1, token[:, :1])[:, 0].double().log()
    best = torch.where(best == NEVER, best.double(), best.double() + (scores - total)[:, None])
    best, token = best.view(len(best) // beams, -1), token.view(len(best) // beams, -1)  # (N, B·K)
    each = best.shape[1] // beams
    best, index = best.topk(min(wide, best.shape[1]))
    token = token.gather(1, index)
    columns = (best.tolist(), (index // each).tolist(), token.tolist())
    return [[Way(*way) for way in zip(*row, strict=True) if way[0] > NEVER] for row in zip(*columns, strict=True)]


def _settled(search: Search, options: Options, length: int, running: float) -> bool:
    """Whether nothing still running can be worth more than the worst hypothesis that would be given."""
    if len(search.finished) < options.beam:
        return False
    kindest = options.max_tokens if options.length_penalty > 0 else length + 1
    return running / length_factor(options, kindest) <= search.finished[-1].worth


def _alike(a: list[int], b: list[int]) -> int:
    """How many first tokens two rows share: what the cache holds of those is the same in both."""
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=True)) if x != y), len(a))
