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

from qkv.decode.filters import make_filters
from qkv.decode.generate import make_runner
from qkv.decode.options import GenerationOptions
from qkv.decode.result import GenerationResult
from qkv.decode.runner import ModelRunner, promote_to_float32
from qkv.decode.sampling import argmax, make_generators, sample
from qkv.decode.selection import NonFiniteLogits, no_token_allowed, token_logprobs
from qkv.decode.sequence import GeneratedSequence, OnText
from qkv.decode.speculative.draft import Draft
from qkv.errors import QkvError, UsageError
from qkv.models import Decoder, Network, Seq2Seq
from qkv.text import Tokenizer


@dataclass
class SpeculativeResult(GenerationResult):
    """A text, and what the guesses were worth."""

    num_forward_passes: int = 0  # how often the model ran; without guesses, once a token
    num_proposed: int = 0
    num_accepted: int = 0

    @property
    def acceptance_rate(self) -> float:
        """The share of guesses that were kept."""
        return self.num_accepted / self.num_proposed if self.num_proposed else 0.0


@torch.inference_mode()
def speculate(
    network: Network,
    prompts: Sequence[Sequence[int]],
    options: GenerationOptions,
    draft: Draft,
    tokenizer: Tokenizer | None = None,
    on_text: OnText | None = None,
    *,
    num_draft_tokens: int = 4,
) -> list[SpeculativeResult]:
    """A result for each prompt (or source), in order; one after the other, for this is to make a single text fast.

    `draft` is a `Lookup` or a `DraftModel`; `guesses` is how many tokens it guesses at a time.
    """
    options.check(network.config)
    assert isinstance(network, Decoder | Seq2Seq)
    if options.beam > 1:
        raise UsageError(f"beam = {options.beam}: speculation writes one text; choose beam = 1, or no draft")
    if not isinstance(num_draft_tokens, int) or num_draft_tokens < 1:
        raise UsageError(f"num_draft_tokens = {num_draft_tokens!r}: a whole number from 1 on")
    if options.stop and tokenizer is None:
        raise QkvError("stop texts need a tokenizer, and this model has none")
    return [
        _write(network, number, prompt, options, draft, tokenizer, on_text, num_draft_tokens)
        for number, prompt in enumerate(prompts)
    ]


def _write(
    network: Decoder | Seq2Seq,
    number: int,
    prompt: Sequence[int],
    options: GenerationOptions,
    draft: Draft,
    tokenizer: Tokenizer | None,
    on_text: OnText | None,
    num_draft_tokens: int,
) -> SpeculativeResult:
    run, end = make_runner(network, [prompt], options), network.config.eos_token_ids
    tokens: list[int] = run.tokens[0].tolist()
    filters = make_filters(options.bind_constraint(tokenizer, end, len(tokens)), end, len(tokens))
    generator = make_generators(options.seed, 1)[0] if options.temperature > 0 else None
    guesser = draft.make_proposer(network, prompt if isinstance(network, Seq2Seq) else None, filters, generator)
    writing = GeneratedSequence(number, stream_decoder=tokenizer.target.stream() if tokenizer else None)
    calls = guessed = accepted = 0
    while True:
        # The model adds a token of its own to the guesses it keeps, so one less is guessed than may still come.
        room = options.max_tokens - len(writing.logprobs) - 1
        guess = guesser.propose(tokens, min(num_draft_tokens, room))
        logits = _verify(run, [*tokens[run.cache.filled :], *guess.ids], 1 + len(guess.ids))
        calls, guessed = calls + 1, guessed + len(guess.ids)
        for place in range(1 + len(guess.ids)):
            raw = here = logits[place : place + 1]
            for apply in filters:
                here = apply(here, torch.tensor([tokens], device=raw.device))
            if not bool((here > float("-inf")).any()):
                raise NonFiniteLogits() if bool(raw.isnan().any()) else no_token_allowed()
            checking = place < len(guess.ids)
            wanted = guess.ids[place] if checking else None
            token = accept_or_resample(
                here, wanted, guess.draft_probs[place] if checking and guess.draft_probs else None, generator
            )
            tokens.append(token)
            accepted += token == wanted
            logprob = token_logprobs(raw, torch.tensor([token], device=raw.device), options.logprobs)[0]
            reason = writing.append(token, logprob, options, end)
            if reason or on_text is not None:
                writing.emit_text(options, on_text, is_last=reason is not None)
            if reason is not None:
                result = vars(writing.to_result(reason))
                return SpeculativeResult(
                    **result, num_forward_passes=calls, num_proposed=guessed, num_accepted=accepted
                )
            if token != wanted:
                break
        run.cache.crop(len(tokens) - 1)


def accept_or_resample(
    logits: Tensor, proposed: int | None, q: Tensor | None, generator: torch.Generator | None
) -> int:
    """The token that stands, given what the model says (1, V): the guess if it is kept, else another one.

    A guess that is refused cannot be drawn after that: it had more of q than of p.
    """
    if generator is None:
        return int(argmax(logits))
    if proposed is None or q is None:
        return int(sample(logits, [generator]))
    p = logits[0].double().softmax(-1)
    q = q.to(p.device)
    if float(torch.rand((), generator=generator, dtype=torch.float64)) < float(
        acceptance_probabilities(p, q)[proposed]
    ):
        return proposed
    return int(sample(residual_distribution(p, q).log()[None], [generator]))


def acceptance_probabilities(p: Tensor, q: Tensor) -> Tensor:
    """With which probability each token is kept, had it been guessed: min(1, p/q), (V,)."""
    return torch.where(q > 0, p / q, 1.0).clamp(max=1.0)


def residual_distribution(p: Tensor, q: Tensor) -> Tensor:
    """What p has more than q, (V,): where refused guesses are made up for."""
    more = (p - q).clamp(min=0.0)
    return more if bool(more.any()) else p  # p = q: nothing is refused but by rounding


def _verify(runner: ModelRunner, token_ids: list[int], num_logits: int) -> Tensor:
    """What the model says after each of the last `wanted` tokens of those it now reads: (wanted, V)."""
    ids = torch.tensor([token_ids], device=runner.tokens.device)
    if isinstance(runner.network, Seq2Seq):
        assert runner.cross_cache is not None
        x, _ = runner.network.hidden(ids, runner.cross_cache, cache=runner.cache)
    else:
        x, _ = runner.network.hidden(ids, cache=runner.cache)
    return promote_to_float32(runner.network.head.project(x[0, -num_logits:]))
