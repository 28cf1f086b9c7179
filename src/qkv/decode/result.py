"""What `generate` returns."""

from dataclasses import dataclass, field
from typing import Literal

FinishReason = Literal["end", "length", "stop"]


@dataclass
class TokenLogprob:
    """A generated token, its log-probability, and those of the most probable tokens at this step, by id."""

    id: int
    logprob: float
    alternatives: dict[int, float] = field(default_factory=dict)


@dataclass
class SearchCandidate:
    """A continuation that beam search considered."""

    beam: int  # the hypothesis that it continues
    token: int
    score: float  # log-probability of all its tokens
    kept: bool  # whether the search kept it
    ended: bool  # whether it ends with this token


@dataclass
class SearchStep:
    """One step of a beam search: its candidates, best first."""

    candidates: list[SearchCandidate]


@dataclass
class GenerationResult:
    """A generated text."""

    text: str  # empty for a model without a tokenizer
    ids: list[int]  # new tokens only, without the end-of-sequence token
    score: (
        float  # log-probability of all new tokens, the end-of-sequence token included; beam search: length-normalised
    )
    finish_reason: FinishReason  # why generation stopped
    logprobs: list[TokenLogprob] = field(default_factory=list)
    alternatives: list["GenerationResult"] = field(
        default_factory=list
    )  # the other hypotheses of a beam search, best first
    search_steps: list[SearchStep] = field(default_factory=list)  # of a beam search, if return_search_steps was set
