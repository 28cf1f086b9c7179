"""The request and the answer of /v1/chat/completions."""

from dataclasses import dataclass
from typing import Annotated, Any, Literal

from qkv.serve.routes.choices import StopReason, Usage
from qkv.serve.routes.generation_body import MAX_LOGPROBS, GenerationBody
from qkv.values import Limits


@dataclass(frozen=True)
class TextPart:
    """A part of a message."""

    type: Literal["text"]
    text: str


@dataclass(frozen=True)
class ChatMessageBody:
    """A message of a chat."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | list[TextPart]
    name: Annotated[str, "Accepted, without effect."] | None = None
    refusal: Annotated[str, "Accepted, without effect."] | None = None


@dataclass(frozen=True, kw_only=True)
class ChatBody(GenerationBody):
    """A request for a reply."""

    messages: Annotated[list[ChatMessageBody], Limits(1, 4096)]
    max_tokens: Annotated[int, Limits(1, 2**31), "The largest number of new tokens."] | None = None
    max_completion_tokens: Annotated[int, Limits(1, 2**31), "Another name of `max_tokens`."] | None = None
    logprobs: Annotated[bool, "Whether to report the log-probability of each token."] = False
    top_logprobs: Annotated[int, Limits(0, MAX_LOGPROBS), "The number of alternatives to report."] = 0
    modalities: Annotated[list[Literal["text"]], "Text is the only one."] | None = None
    reasoning_effort: Annotated[str, "Accepted, without effect."] | None = None
    verbosity: Annotated[str, "Accepted, without effect."] | None = None
    prediction: Annotated[dict[str, Any], "Accepted, without effect: a guess of the reply, to save time."] | None = None
    parallel_tool_calls: Annotated[bool, "Accepted, without effect: there are no tools."] | None = None
    tools: Annotated[list[Any], Limits(0, 0), "Only an empty list: tools are not supported."] | None = None
    tool_choice: Annotated[Literal["none", "auto"], "Accepted, without effect: there are no tools."] | None = None
    template: (
        Annotated[Literal["plain"], 'For a model without a chat template: "User: …" and "Assistant: …".'] | None
    ) = None


@dataclass(frozen=True)
class TopLogprob:
    """An alternative token."""

    token: str
    logprob: float
    bytes: list[int]


@dataclass(frozen=True)
class ChatLogprob:
    """A token and its alternatives."""

    token: str
    logprob: float
    bytes: list[int]
    top_logprobs: list[TopLogprob]


@dataclass(frozen=True)
class ChatLogprobs:
    """The log-probabilities of the tokens of a reply."""

    content: list[ChatLogprob]
    refusal: None = None


@dataclass(frozen=True)
class ChatMessageAnswer:
    """The reply."""

    role: Literal["assistant"]
    content: str
    refusal: None = None


@dataclass(frozen=True)
class ChatChoice:
    """A reply and why it ended."""

    index: int
    message: ChatMessageAnswer
    logprobs: ChatLogprobs | None
    finish_reason: StopReason


@dataclass(frozen=True)
class ChatAnswer:
    """The replies."""

    id: str
    object: Literal["chat.completion"]
    created: int
    model: str
    choices: list[ChatChoice]
    usage: Usage
