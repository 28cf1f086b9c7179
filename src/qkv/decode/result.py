"""What decoding gives."""

from dataclasses import dataclass, field
from typing import Literal

FinishReason = Literal["end", "length", "stop"]


@dataclass
class TokenLogprob:
    """A token that was chosen, its log-probability, and the likeliest alternatives, by id."""

    id: int
    logprob: float
    alternatives: dict[int, float] = field(default_factory=dict)


@dataclass
class SearchCandidate:
    """One way on that a beam search looked at."""

    beam: int  # which hypothesis it continues
    token: int
    score: float  # the log-probability of all its tokens
    kept: bool  # whether it was among those that went on
    ended: bool  # whether it ended here


@dataclass
class SearchStep:
    """One step of a recorded beam search: its candidates, best first."""

    candidates: list[SearchCandidate]


@dataclass
class GenerationResult:
    """A text that a model wrote."""

    text: str  # empty for a model without a tokenizer
    ids: list[int]  # new tokens only, without the end
    score: float  # the log-probability of all new tokens, the end included; for a search, divided by its penalty
    finish_reason: FinishReason  # why it stopped
    logprobs: list[TokenLogprob] = field(default_factory=list)
    alternatives: list["GenerationResult"] = field(default_factory=list)  # the other hypotheses of a search, best first
    search_steps: list[SearchStep] = field(default_factory=list)  # a recorded search
