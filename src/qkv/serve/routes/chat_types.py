"""The request and the answer of /v1/chat/completions."""

from dataclasses import dataclass
from typing import Annotated, Any, Literal

from qkv.serve.routes.choices import StopReason, Usage
from qkv.serve.routes.generation_body import MAX_LOGPROBS, GenerationBody
from qkv.values import Limits

ChatStopReason = StopReason | Literal["tool_calls"]
MAX_TOOLS = 128


@dataclass(frozen=True)
class TextPart:
    """A part of a message."""

    type: Literal["text"]
    text: str


@dataclass(frozen=True)
class ImageUrl:
    """An image."""

    url: Annotated[str, "A data URL, such as data:image/png;base64,…; nothing is fetched."]
    detail: Annotated[str, "Accepted, without effect."] | None = None


@dataclass(frozen=True)
class ImagePart:
    """An image in a message, for a model that reads images."""

    type: Literal["image_url"]
    image_url: ImageUrl


@dataclass(frozen=True)
class FunctionBody:
    """A tool."""

    name: Annotated[str, Limits(1, 64)]
    description: Annotated[str, "What it does, for the model."] = ""
    parameters: Annotated[dict[str, Any], "The JSON schema of its arguments."] | None = None
    strict: Annotated[bool, "The arguments are always valid, with or without this."] | None = None


@dataclass(frozen=True)
class ToolBody:
    """A tool that the model may call."""

    type: Literal["function"]
    function: FunctionBody


@dataclass(frozen=True)
class FunctionName:
    """The name of a tool."""

    name: str


@dataclass(frozen=True)
class ToolChoiceBody:
    """The tool that the model must call."""

    type: Literal["function"]
    function: FunctionName


@dataclass(frozen=True)
class FunctionCall:
    """The name of a tool, and its arguments as a text of JSON."""

    name: str
    arguments: str


@dataclass(frozen=True)
class ToolCallPart:
    """A call of a tool."""

    id: str
    type: Literal["function"]
    function: FunctionCall


@dataclass(frozen=True)
class ChatMessageBody:
    """A message of a chat."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | list[TextPart | ImagePart] | None = None
    tool_calls: Annotated[list[ToolCallPart], Limits(0, MAX_TOOLS)] | None = None
    tool_call_id: Annotated[str, "The call whose result this is."] | None = None
    name: Annotated[str, "Accepted, without effect."] | None = None
    refusal: Annotated[str, "Accepted, without effect."] | None = None
    annotations: Annotated[list[Any], "Accepted, without effect."] | None = None
    audio: Annotated[None, "There is no sound in a chat."] = None
    function_call: Annotated[None, "The form of before `tool_calls`."] = None


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
    parallel_tool_calls: Annotated[bool, "Accepted, without effect: a reply has one call."] | None = None
    tools: Annotated[list[ToolBody], Limits(0, MAX_TOOLS), "For a model whose chat template has tools."] | None = None
    tool_choice: Literal["auto", "none", "required"] | ToolChoiceBody | None = None
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
    content: Annotated[str | None, "null in a call of a tool"]
    refusal: None = None
    tool_calls: list[ToolCallPart] | None = None


@dataclass(frozen=True)
class ChatChoice:
    """A reply and why it ended."""

    index: int
    message: ChatMessageAnswer
    logprobs: ChatLogprobs | None
    finish_reason: ChatStopReason


@dataclass(frozen=True)
class ChatAnswer:
    """The replies."""

    id: str
    object: Literal["chat.completion"]
    created: int
    model: str
    choices: list[ChatChoice]
    usage: Usage
