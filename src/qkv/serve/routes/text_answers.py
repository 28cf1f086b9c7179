"""The answers of the calls on texts. Their results are those of `qkv.tasks.results`, as JSON."""

from dataclasses import dataclass
from typing import Annotated, Literal

from qkv.decode.result import FinishReason
from qkv.tasks.results import (
    ClassPrediction,
    FilledText,
    LabelsPrediction,
    ScorePrediction,
    TaggedText,
    WordLink,
)

ServedName = Annotated[str, "The name of the model."]


@dataclass(frozen=True)
class GeneratedTextResult:
    """A text that the model generated. Lists that were not asked for are left out."""

    text: str
    score: Annotated[float, "The log-probability; beam search divides it by a length divisor."]
    finish_reason: FinishReason
    ids: list[int]
    alternatives: Annotated[list["GeneratedTextResult"], "Other hypotheses, the best first."] | None = None
    parts: Annotated[list["GeneratedTextResult"], "The results of sentences or parts."] | None = None
    alignment: list[WordLink] | None = None


@dataclass(frozen=True)
class GenerateAnswer:
    """A text for each text."""

    model: ServedName
    results: list[GeneratedTextResult]


@dataclass(frozen=True)
class ClassifyAnswer:
    """A class, labels or a score for each text, depending on the model."""

    model: ServedName
    results: list[ClassPrediction | LabelsPrediction | ScorePrediction]


@dataclass(frozen=True)
class TagAnswer:
    """The tagged words of each text."""

    model: ServedName
    results: list[TaggedText]


@dataclass(frozen=True)
class AnswerResult:
    """A part of a passage, with its characters."""

    text: Annotated[str, "Empty if there is no answer."]
    start: Annotated[int, "−1 if there is no answer."]
    end: int
    score: float
    probability: float
    alternatives: list["AnswerResult"]


@dataclass(frozen=True)
class AnswerAnswer:
    """The answer to each question."""

    model: ServedName
    results: list[AnswerResult]


@dataclass(frozen=True)
class FillAnswer:
    """The filled text, and the candidates for each mask."""

    model: ServedName
    results: list[FilledText]


@dataclass(frozen=True)
class ScoredToken:
    """A token of a target."""

    id: int
    text: str
    logprob: float


@dataclass(frozen=True)
class ScoredText:
    """The log-probability of a target, and of each of its tokens. The last is the end-of-sequence token."""

    logprob: float
    tokens: list[ScoredToken]


@dataclass(frozen=True)
class ScoreAnswer:
    """The log-probability of each target."""

    model: ServedName
    results: list[ScoredText]


@dataclass(frozen=True)
class TracedTokens:
    """The tokens that one stack reads."""

    ids: list[int]
    texts: list[str]
    special: list[bool]


@dataclass(frozen=True)
class TracedSite:
    """The activations of one site."""

    shape: list[int]
    dtype: Literal["float32"]
    data: Annotated[str, "base64 of float32 numbers, little-endian, in row-major order."]


@dataclass(frozen=True)
class TraceAnswer:
    """The activations of one text."""

    model: ServedName
    tokens: Annotated[dict[str, TracedTokens], "By stack: encoder, decoder or both."]
    sites: dict[str, TracedSite]
