"""Beam search without waiting for the host: `beam.py`'s search, all of its state in tensors on the device.

What a step finds is written down as tokens and back-pointers; finished hypotheses keep where they ended, and their
tokens are read off backwards when all is done. Sources that are settled go on without effect, as shapes never change.
`beam.py` stays the reference, and searches where a request asks for more: filters that look at the tokens so far, or
a record of the search.

N sources, B beams, V vocabulary, W ways on that are looked at
"""

import torch
from torch import Tensor

from qkv.decode import static_step
from qkv.decode.beam import Hypothesis, Search
from qkv.decode.options import Options, length_factor
from qkv.decode.run import Run
from qkv.decode.static import Steps, go_on, is_any_of
from qkv.decode.static_step import Seen, StaticRun

NEVER = float("-inf")
GROUP = 64
"""So many neighbours in the vocabulary stand for one another when the best are sought."""


def fits(run: Run, options: Options) -> bool:
    """Whether this search needs no look at the tokens so far, and none at each step."""
    looks = options.repetition_penalty != 1.0 or options.no_repeat or options.filters or options.constraint is not None
    return not looks and not options.record and static_step.fits(run.network)


class Beams:
    """The state of all sources' searches."""

    def __init__(self, run: StaticRun, options: Options, end: tuple[int, ...]) -> None:
        self.run, self.options, self.end = run, options, end
        sources, beams, most = run.rows, options.beam, options.max_tokens
        device = run.sight.device
        # Each hypothesis may end in `len(end)` ways: that many more candidates leave B that go on.
        self.wide = beams * (1 + max(1, len(end)))
        self.token = torch.zeros(sources, beams, dtype=torch.long, device=device)
        self.score = torch.full((sources, beams), NEVER, dtype=torch.float64, device=device)
        self.score[:, 0] = 0.0  # all beams hold the same prompt: only one of them counts
        self.tokens = torch.zeros(most, sources, beams, dtype=torch.long, device=device)
        self.parents = torch.zeros_like(self.tokens)
        self.worth = torch.full_like(self.score, NEVER)  # of the finished ones, best first
        self.found = torch.zeros(sources, beams, 3, dtype=torch.long, device=device)  # their length, beam, last token
        self.done = torch.zeros(sources, dtype=torch.bool, device=device)
        self.count = torch.zeros(1, dtype=torch.long, device=device)
        factors = [length_factor(options, length) for length in range(1, most + 2)]
        self.factor = torch.tensor(factors, dtype=torch.float64, device=device)
        self.places = torch.arange(beams, device=device)
        self.banned = torch.tensor(options.banned, dtype=torch.long, device=device)

    @property
    def state(self) -> list[Tensor]:
        """What a step changes, besides what it writes down: put back, the same steps can be made again."""
        return [self.token, self.score, self.worth, self.found, self.done, self.count]

    def step(self, seen: Seen) -> None:
        """Read the newest token of each hypothesis, and take the best ways on."""
        self.advance(self.run.logits(self.token, seen), seen)

    def advance(self, logits: Tensor, seen: Seen) -> None:
        """Sort the ways on (N·B, V) into finished and running ones, as `Search.advance` does."""
        best, beam, token = self.ways_on(logits)  # (N, W) each, best first
        there = best > NEVER
        closing = is_any_of(token, self.end) | (self.count + 1 == self.options.max_tokens)
        # An end that B better ways push out of the beam is pushed out too.
        beams = self.options.beam
        self._finish(best[:, :beams], beam[:, :beams], token[:, :beams], (there & closing)[:, :beams])
        going = there & ~closing
        order = going.cumsum(1) - 1
        chosen = going[:, None] & (order[:, None] == self.places[:, None])  # (N, B, W), each beam one of the ways
        found, index = chosen.any(-1), chosen.int().argmax(-1)  # (N, B)
        score = torch.where(found, best.gather(1, index), NEVER)
        parent = torch.where(found, beam.gather(1, index), 0)
        token = torch.where(found, token.gather(1, index), 0)
        self.done.logical_or_(self._settled(score[:, 0]) | ~found[:, 0])
        self.score.copy_(score)
        self.token.copy_(token)
        self.tokens.index_copy_(0, self.count, token[None])
        self.parents.index_copy_(0, self.count, parent[None])
        seen.sight.copy_(seen.sight.gather(1, parent[:, :, None].expand_as(seen.sight)))
        self.count.add_(1)

    def ways_on(self, logits: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The best W ways on of each source: their scores, which beam they continue, and with which token."""
        logits = self._allowed(logits)
        largest = logits.amax(-1).double()
        exact = torch.promote_types(logits.dtype, torch.float32)
        share = logits.softmax(-1, dtype=exact).amax(-1).double()
        before = self.score.flatten() - torch.where(largest == NEVER, 0.0, largest - share.log())
        best, token = best_of(logits, min(self.wide, logits.shape[-1]))  # a row's best are among its source's best
        best = (best.double() + before[:, None]).view(self.run.rows, -1)  # (N, B·K)
        each = best.shape[1] // self.options.beam
        best, index = best.topk(min(self.wide, best.shape[1]))
        return best, index // each, token.view(self.run.rows, -1).gather(1, index)

    def _allowed(self, logits: Tensor) -> Tensor:
        if self.options.banned:
            logits = logits.index_fill(1, self.banned, NEVER)
        if self.options.min_tokens and self.end:
            early = self.count < self.options.min_tokens
            ends = is_any_of(torch.arange(logits.shape[1], device=logits.device), self.end)
            logits = logits.masked_fill(early & ends, NEVER)
        return logits

    def _finish(self, score: Tensor, beam: Tensor, token: Tensor, closing: Tensor) -> None:
        """Keep the best B of those finished before and now; of equals, the one that came first. (N, B) each."""
        closing = closing & ~self.done[:, None]
        worth = torch.cat([self.worth, torch.where(closing, score / self.factor[self.count], NEVER)], dim=1)
        length = torch.where(closing, self.count + 1, 0)
        found = torch.cat([self.found, torch.stack([length, beam, token], dim=-1)], dim=1)
        order = worth.argsort(dim=1, descending=True, stable=True)[:, : self.options.beam]
        self.worth.copy_(worth.gather(1, order))
        self.found.copy_(found.gather(1, order[:, :, None].expand(-1, -1, 3)))

    def _settled(self, running: Tensor) -> Tensor:
        """Whether nothing still running, (N,) at best, can be worth more than the worst that would be given."""
        rising = self.options.length_penalty > 0
        kindest = self.factor[self.options.max_tokens - 1] if rising else self.factor[self.count + 1]
        return (self.found[:, -1, 0] > 0) & (running / kindest <= self.worth[:, -1])

    def searches(self) -> list[Search]:
        """What was found, as the reference gives it; this waits for the device."""
        tokens, parents, found, worth = (t.cpu() for t in (self.tokens, self.parents, self.found, self.worth))
        length, beam, last = found.unbind(-1)  # (N, B)
        written = torch.zeros(*length.shape, len(tokens), dtype=torch.long)
        for place in reversed(range(len(tokens))):
            inside = place < length - 1
            written[:, :, place] = torch.where(inside, tokens[place].gather(1, beam), last)
            beam = torch.where(inside, parents[place].gather(1, beam), beam)
        rows = zip(written.tolist(), length.tolist(), worth.tolist(), strict=True)
        return [
            Search(
                [],
                [
                    Hypothesis(ids[:count], value, ids[count - 1] in self.end)
                    for ids, count, value in zip(*row, strict=True)
                    if count
                ],
                done=True,
            )
            for row in rows
        ]


def best_of(logits: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The k largest of each row and where they stand, largest first: `topk`, with one look at most of the vocabulary.

    The k largest lie in the k groups of neighbours with the largest maxima, or in what is left over after the last
    group: only those are looked at again.
    """
    groups = logits.shape[1] // GROUP
    if groups <= 2 * k:
        return logits.topk(k)
    whole = groups * GROUP
    table = logits[:, :whole].unflatten(1, (groups, GROUP))
    top = table.amax(-1).topk(k).indices  # (R, k)
    some = table.gather(1, top[:, :, None].expand(-1, -1, GROUP)).flatten(1)
    ids = (top[:, :, None] * GROUP + torch.arange(GROUP, device=logits.device)).flatten(1)
    rest = torch.arange(whole, logits.shape[1], device=logits.device).expand(len(logits), -1)
    some, ids = torch.cat([some, logits[:, whole:]], dim=1), torch.cat([ids, rest], dim=1)
    best, index = some.topk(k)
    return best, ids.gather(1, index)


def search_static(run: Run, options: Options, end: tuple[int, ...]) -> list[Search]:
    """Search every row of a fresh run, as `beam_search` does."""
    static = StaticRun(run, options.max_tokens, beams=options.beam)
    beams = Beams(static, options, end)
    beams.advance(static.first.repeat_interleave(options.beam, dim=0), static.seen(static.length))
    go_on(Steps(static, beams.step, compiled=options.compiled), options.max_tokens, beams.done)
    return beams.searches()
