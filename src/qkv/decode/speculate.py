"""Speculative decoding: guess some tokens cheaply, check them all in one run of the model, keep what it agrees with.

A run over five tokens costs little more than one over a single token, since the time goes into reading the weights.
Taking the likeliest token, the text is the one that `generate` writes. Drawing, it is as likely as `generate` would
have it: a guess g, drawn from q where the model says p, is kept with probability min(1, p(g)/q(g)), else a token
is drawn from what p has more than q, and together that is p exactly (Leviathan et al. 2023, Chen et al. 2023). A guess
that was not drawn, as a look-up's, is kept if the model's own draw happens to be it; that takes the same random
numbers as `generate`, so the same seed gives the same text.

V vocabulary, K guesses
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from qkv.decode.choice import NotNumbers, forbidden, logprobs_of
from qkv.decode.choose import draw, generators_of, likeliest
from qkv.decode.draft import Draft
from qkv.decode.filters import filters_of
from qkv.decode.generate import start
from qkv.decode.options import Options
from qkv.decode.result import Result
from qkv.decode.run import Run, exact
from qkv.decode.writing import OnText, Writing
from qkv.errors import QkvError, UsageError
from qkv.models import Decoder, Network, Seq2Seq
from qkv.text import Tokenizer


@dataclass
class SpeculativeResult(Result):
    """A text, and what the guesses were worth."""

    calls: int = 0  # how often the model ran; without guesses, once a token
    guessed: int = 0
    accepted: int = 0

    @property
    def acceptance(self) -> float:
        """The share of guesses that were kept."""
        return self.accepted / self.guessed if self.guessed else 0.0


@torch.inference_mode()
def speculate(
    network: Network,
    prompts: Sequence[Sequence[int]],
    options: Options,
    draft: Draft,
    tokenizer: Tokenizer | None = None,
    on_text: OnText | None = None,
    *,
    guesses: int = 4,
) -> list[SpeculativeResult]:
    """A result for each prompt (or source), in order; one after the other, for this is to make a single text fast.

    `draft` is a `Lookup` or a `DraftModel`; `guesses` is how many tokens it guesses at a time.
    """
    options.check(network.config)
    assert isinstance(network, Decoder | Seq2Seq)
    if options.beam > 1:
        raise UsageError(f"beam = {options.beam}: speculation writes one text; choose beam = 1, or no draft")
    if not isinstance(guesses, int) or guesses < 1:
        raise UsageError(f"guesses = {guesses!r}: a whole number from 1 on")
    if options.stop and tokenizer is None:
        raise QkvError("stop texts need a tokenizer, and this model has none")
    return [
        _write(network, number, prompt, options, draft, tokenizer, on_text, guesses)
        for number, prompt in enumerate(prompts)
    ]


def _write(
    network: Decoder | Seq2Seq,
    number: int,
    prompt: Sequence[int],
    options: Options,
    draft: Draft,
    tokenizer: Tokenizer | None,
    on_text: OnText | None,
    guesses: int,
) -> SpeculativeResult:
    run, end = start(network, [prompt], options), network.config.end
    tokens: list[int] = run.tokens[0].tolist()
    filters = filters_of(options.bound(tokenizer, end, len(tokens)), end, len(tokens))
    generator = generators_of(options.seed, 1)[0] if options.temperature > 0 else None
    guesser = draft.begin(network, prompt if isinstance(network, Seq2Seq) else None, filters, generator)
    writing = Writing(number, stream=tokenizer.target.stream() if tokenizer else None)
    calls = guessed = accepted = 0
    while True:
        # The model adds a token of its own to the guesses it keeps, so one less is guessed than may still come.
        room = options.max_tokens - len(writing.logprobs) - 1
        guess = guesser.guess(tokens, min(guesses, room))
        logits = _read(run, [*tokens[run.cache.filled :], *guess.ids], 1 + len(guess.ids))
        calls, guessed = calls + 1, guessed + len(guess.ids)
        for place in range(1 + len(guess.ids)):
            raw = here = logits[place : place + 1]
            for apply in filters:
                here = apply(here, torch.tensor([tokens], device=raw.device))
            if not bool((here > float("-inf")).any()):
                raise NotNumbers() if bool(raw.isnan().any()) else forbidden()
            checking = place < len(guess.ids)
            wanted = guess.ids[place] if checking else None
            token = settle(here, wanted, guess.drawn_from[place] if checking and guess.drawn_from else None, generator)
            tokens.append(token)
            accepted += token == wanted
            logprob = logprobs_of(raw, torch.tensor([token], device=raw.device), options.logprobs)[0]
            reason = writing.take(token, logprob, options, end)
            if reason or on_text is not None:
                writing.hand_out(options, on_text, last=reason is not None)
            if reason is not None:
                result = vars(writing.result(reason))
                return SpeculativeResult(**result, calls=calls, guessed=guessed, accepted=accepted)
            if token != wanted:
                break
        run.cache.crop(len(tokens) - 1)


def settle(logits: Tensor, guess: int | None, q: Tensor | None, generator: torch.Generator | None) -> int:
    """The token that stands, given what the model says (1, V): the guess if it is kept, else another one.

    A guess that is refused cannot be drawn after that: it had more of q than of p.
    """
    if generator is None:
        return int(likeliest(logits))
    if guess is None or q is None:
        return int(draw(logits, [generator]))
    p = logits[0].double().softmax(-1)
    q = q.to(p.device)
    if float(torch.rand((), generator=generator, dtype=torch.float64)) < float(kept(p, q)[guess]):
        return guess
    return int(draw(rest(p, q).log()[None], [generator]))


def kept(p: Tensor, q: Tensor) -> Tensor:
    """With which probability each token is kept, had it been guessed: min(1, p/q), (V,)."""
    return torch.where(q > 0, p / q, 1.0).clamp(max=1.0)


def rest(p: Tensor, q: Tensor) -> Tensor:
    """What p has more than q, (V,): where refused guesses are made up for."""
    more = (p - q).clamp(min=0.0)
    return more if bool(more.any()) else p  # p = q: nothing is refused but by rounding


def _read(run: Run, fed: list[int], wanted: int) -> Tensor:
    """What the model says after each of the last `wanted` tokens of those it now reads: (wanted, V)."""
    ids = torch.tensor([fed], device=run.tokens.device)
    if isinstance(run.network, Seq2Seq):
        assert run.cross is not None
        x, _ = run.network.hidden(ids, run.cross, cache=run.cache)
    else:
        x, _ = run.network.hidden(ids, cache=run.cache)
    return exact(run.network.head.read(x[0, -wanted:]))
