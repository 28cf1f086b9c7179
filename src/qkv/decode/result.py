"""The results that `generate` returns."""

from dataclasses import dataclass, field
from typing import Literal

FinishReason = Literal["end", "length", "stop"]


@dataclass(slots=True)
class TokenLogprob:
    """A generated token and its log-probability. `alternatives` has the most probable tokens of the step, by id."""

    id: int
    logprob: float
    alternatives: dict[int, float] = field(default_factory=dict)


@dataclass
class SearchCandidate:
    """A continuation that beam search considered."""

    beam: int  # the number of the beam that it continues
    token: int
    score: float  # the log-probability of all its tokens
    kept: bool  # whether the search kept it
    ended: bool  # whether the token is an end-of-sequence token


@dataclass
class SearchStep:
    """One step of a beam search: its candidates, best first."""

    candidates: list[SearchCandidate]


@dataclass
class GenerationResult:
    """A generated text."""

    text: str  # empty for a model without a tokenizer
    ids: list[int]  # the new tokens, without the end-of-sequence token
    # The log-probability of all new tokens, with the end-of-sequence token. Beam search divides it by a length divisor.
    score: float
    finish_reason: FinishReason  # why generation stopped
    logprobs: list[TokenLogprob] = field(default_factory=list)  # one per new token; empty for beam search
    # Beam search only: the other hypotheses, best first; and the steps of the search if return_search_steps is set.
    alternatives: list["GenerationResult"] = field(default_factory=list)
    search_steps: list[SearchStep] = field(default_factory=list)
