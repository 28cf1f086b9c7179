"""Beam search: keep the best B ways on at each step. Ranking sequences is the last of decoding's four roles.

A hypothesis of n tokens (the end counts) is worth its log-probability divided by n^α (or GNMT's factor). The search
for one source stops only when no way on could still beat what is finished: log-probabilities only fall, so the most
that a running hypothesis can be worth is its score now divided by the factor that is kindest to it, the one at the
longest length for α > 0 and the one at the next length for α ≤ 0.

N sources, B beams, V vocabulary
"""

from dataclasses import dataclass, field

import torch
from torch import Tensor

from qkv.decode.filters import filters_of
from qkv.decode.options import Options, length_factor
from qkv.decode.result import Candidate, Step
from qkv.decode.run import Run


@dataclass
class Hypothesis:
    """A finished sequence: its new tokens (with the end, where it has one), what it is worth, and whether it ended."""

    ids: list[int]
    worth: float
    ended: bool


@dataclass
class Search:
    """The state of one source's search."""

    finished: list[Hypothesis] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)
    done: bool = False

    def add(self, hypothesis: Hypothesis, keep: int) -> None:
        """Keep the best `keep`; of equals, the one that came first."""
        self.finished.append(hypothesis)
        self.finished.sort(key=lambda h: -h.worth)
        del self.finished[keep:]


def beam_search(run: Run, options: Options, end: tuple[int, ...]) -> list[Search]:
    """Search every row of a fresh run; each of its rows becomes `options.beam` rows."""
    sources, beams = run.tokens.shape[0], options.beam
    start = run.tokens.shape[1]
    filters = filters_of(options, end, start)
    ends = torch.tensor(sorted(end), device=run.tokens.device, dtype=torch.long)
    searches = [Search() for _ in range(sources)]

    logits = run.prefill()  # (N, V)
    run.reorder(torch.arange(sources, device=logits.device).repeat_interleave(beams))
    logits = logits.repeat_interleave(beams, dim=0)
    scores = logits.new_full((sources, beams), float("-inf"), dtype=torch.float64)
    scores[:, 0] = 0.0  # all beams hold the same prompt: only one of them counts

    for length in range(1, options.max_tokens + 1):
        for apply in filters:
            logits = apply(logits, run.tokens)
        total = scores[:, :, None] + logits.double().log_softmax(-1).view(sources, beams, -1)  # (N, B, V)
        vocab = total.shape[-1]
        # Each hypothesis may end in `len(end)` ways: that many more candidates leave B that go on.
        wide = min(beams * (1 + max(1, len(end))), beams * vocab)
        best, index = total.flatten(1).topk(wide)  # (N, wide), best first
        beam, token = index // vocab, index % vocab
        ended = torch.isin(token, ends) & (best > float("-inf"))
        scores, rows, tokens = _advance(searches, run, options, length, best, beam, token, ended, start)
        if all(search.done for search in searches) or length == options.max_tokens:
            break
        run.reorder(rows)
        logits = run.step(tokens)
    return searches


def _advance(
    searches: list[Search],
    run: Run,
    options: Options,
    length: int,
    best: Tensor,
    beam: Tensor,
    token: Tensor,
    ended: Tensor,
    start: int,
) -> tuple[Tensor, Tensor, Tensor]:
    """Sort one step's candidates into finished and running; the next scores (N, B), rows (N·B,) and tokens (N·B,)."""
    sources, beams = best.shape[0], options.beam
    last = length == options.max_tokens
    factor = length_factor(options, length)
    scores = best.new_full((sources, beams), float("-inf"))
    rows = torch.zeros(sources, beams, dtype=torch.long)
    tokens = torch.zeros(sources, beams, dtype=torch.long)
    values, beam_list, token_list, ended_list = best.tolist(), beam.tolist(), token.tolist(), ended.tolist()
    written = run.tokens[:, start:].tolist() if start < run.tokens.shape[1] else [[] for _ in range(sources * beams)]
    for n, search in enumerate(searches):
        going: list[int] = []
        kept: set[int] = set()
        for rank, value in enumerate(values[n]):
            if value == float("-inf"):
                continue
            row = n * beams + beam_list[n][rank]
            if ended_list[n][rank] or last:
                # An end that B better ways push out of the beam is pushed out too.
                if not search.done and rank < beams:
                    ids = [*written[row], token_list[n][rank]]
                    search.add(Hypothesis(ids, value / factor, ended_list[n][rank]), beams)
                    kept.add(rank)
            elif len(going) < beams:
                going.append(rank)
                kept.add(rank)
        for place, rank in enumerate(going):
            scores[n, place] = values[n][rank]
            rows[n, place] = n * beams + beam_list[n][rank]
            tokens[n, place] = token_list[n][rank]
        for place in range(len(going), beams):
            rows[n, place] = n * beams  # a place without a hypothesis: its score of −∞ keeps it out
        if options.record and not search.done:
            search.steps.append(
                Step(
                    [
                        Candidate(beam_list[n][r], token_list[n][r], values[n][r], r in kept, ended_list[n][r])
                        for r in range(len(values[n]))
                        if values[n][r] > float("-inf")
                    ]
                )
            )
        search.done = (
            search.done or not going or _settled(search, options, length, values[n][going[0]] if going else 0.0)
        )
    device = best.device
    return scores, rows.flatten().to(device), tokens.flatten().to(device)


def _settled(search: Search, options: Options, length: int, running: float) -> bool:
    """Whether nothing still running can be worth more than the worst hypothesis that would be given."""
    if len(search.finished) < options.beam:
        return False
    kindest = options.max_tokens if options.length_penalty > 0 else length + 1
    return running / length_factor(options, kindest) <= search.finished[-1].worth
