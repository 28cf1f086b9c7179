"""The request and the answer of /v1/responses. Its items are converted to and from the messages of a chat."""

from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from qkv.serve.routes.chat_types import (
    MAX_TOOLS,
    ChatBody,
    ChatMessageBody,
    FunctionBody,
    FunctionCall,
    FunctionName,
    TextPart,
    ToolBody,
    ToolCallPart,
    ToolChoiceBody,
)
from qkv.serve.routes.generation_body import JsonSchemaFormat, ModelName, ResponseFormat
from qkv.values import Limits


@dataclass(frozen=True)
class InputTextPart:
    """A part of a message."""

    type: Literal["input_text", "output_text"]
    text: str
    annotations: Annotated[list[Any], "Accepted, without effect."] | None = None
    logprobs: Annotated[list[Any], "Accepted, without effect."] | None = None


@dataclass(frozen=True)
class InputMessage:
    """A message."""

    role: Literal["system", "developer", "user", "assistant"]
    content: str | list[InputTextPart]
    type: Literal["message"] = "message"
    phase: Annotated[str, "Accepted, without effect."] | None = None
    id: Annotated[str, "Accepted, without effect."] | None = None
    status: Annotated[str, "Accepted, without effect."] | None = None


@dataclass(frozen=True)
class InputCall:
    """A call of a tool in an earlier response."""

    type: Literal["function_call"]
    call_id: str
    name: str
    arguments: str
    namespace: Annotated[None, "Tools have no namespaces."] = None
    caller: Annotated[dict[str, Any], "Accepted, without effect."] | None = None
    id: Annotated[str, "Accepted, without effect."] | None = None
    status: Annotated[str, "Accepted, without effect."] | None = None


@dataclass(frozen=True)
class InputCallOutput:
    """The result of a call."""

    type: Literal["function_call_output"]
    call_id: str
    output: str
    id: Annotated[str, "Accepted, without effect."] | None = None
    status: Annotated[str, "Accepted, without effect."] | None = None


@dataclass(frozen=True)
class FunctionTool:
    """A tool that the model may call."""

    type: Literal["function"]
    name: Annotated[str, Limits(1, 64)]
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


@dataclass(frozen=True)
class FunctionChoice:
    """The tool that the model must call."""

    type: Literal["function"]
    name: str


@dataclass(frozen=True)
class TextFormat:
    """The form of the answer."""

    type: Literal["text", "json_object", "json_schema"]
    name: str = ""
    schema: dict[str, Any] | None = None
    description: str = ""
    strict: bool | None = None


@dataclass(frozen=True)
class TextOptions:
    """How the answer is written."""

    format: TextFormat | None = None
    verbosity: Annotated[str, "Accepted, without effect."] | None = None


InputItem = InputMessage | InputCall | InputCallOutput


@dataclass(frozen=True, kw_only=True)
class ResponseBody:
    """A request for a response. The server keeps no responses, so `input` is the whole conversation."""

    input: str | Annotated[list[InputItem], Limits(1, 4096)]
    model: ModelName | None = None
    instructions: Annotated[str, "A system prompt."] | None = None
    max_output_tokens: Annotated[int, Limits(1, 2**31), "The largest number of new tokens."] | None = None
    temperature: Annotated[float, Limits(0, 2), "0 is greedy decoding."] | None = None
    top_p: Annotated[float, Limits(0, 1)] | None = None
    stream: Annotated[bool, "Whether the answer is sent while it is generated."] = False
    text: TextOptions | None = None
    tools: Annotated[list[FunctionTool], Limits(0, MAX_TOOLS), "For a model whose chat template has tools."] | None = (
        None
    )
    tool_choice: Literal["auto", "none", "required"] | FunctionChoice | None = None
    previous_response_id: Annotated[None, "The server keeps no responses; send the conversation."] = None
    background: Annotated[Literal[False], "Responses are not made in the background."] | None = None
    include: Annotated[list[str], Limits(0, 0), "Only an empty list."] | None = None
    top_logprobs: Annotated[int, Limits(0, 0), "Only 0; /v1/chat/completions has log-probabilities."] | None = None
    truncation: Annotated[Literal["disabled"], "A conversation is never shortened."] | None = None
    parallel_tool_calls: Annotated[bool, "Accepted, without effect: a response has one call."] | None = None
    store: Annotated[bool, "Accepted, without effect: no response is kept."] | None = None
    metadata: Annotated[dict[str, str], "Returned with the response."] | None = None
    reasoning: Annotated[dict[str, Any], "Accepted, without effect."] | None = None
    service_tier: Annotated[str, "Accepted, without effect."] | None = None
    user: Annotated[str, "Accepted, without effect."] | None = None
    safety_identifier: Annotated[str, "Accepted, without effect."] | None = None
    prompt_cache_key: Annotated[str, "Accepted, without effect."] | None = None
    # What OpenAI's API does not have
    seed: Annotated[int, Limits(-(2**62), 2**62), "The same seed gives the same text."] | None = None
    template: (
        Annotated[Literal["plain"], 'For a model without a chat template: "User: …" and "Assistant: …".'] | None
    ) = None

    def to_chat(self) -> ChatBody:
        """The same request to the other API."""
        messages = [ChatMessageBody("system", self.instructions)] if self.instructions else []
        items: list[InputItem] = [InputMessage("user", self.input)] if isinstance(self.input, str) else self.input
        choice = self.tool_choice
        options: dict[str, Any] = {"temperature": self.temperature, "top_p": self.top_p}
        return ChatBody(
            messages=messages + [to_message(item) for item in items],
            model=self.model,
            max_tokens=self.max_output_tokens,
            stream=self.stream,
            seed=self.seed,
            template=self.template,
            response_format=to_response_format(self.text),
            tools=[
                ToolBody("function", FunctionBody(tool.name, tool.description or "", tool.parameters))
                for tool in self.tools or ()
            ],
            tool_choice=ToolChoiceBody("function", FunctionName(choice.name))
            if isinstance(choice, FunctionChoice)
            else choice,
            **{name: value for name, value in options.items() if value is not None},
        )


def to_message(item: InputItem) -> ChatMessageBody:
    """An item as a message of a chat."""
    if isinstance(item, InputCall):
        call = ToolCallPart(item.call_id, "function", FunctionCall(item.name, item.arguments))
        return ChatMessageBody("assistant", None, [call])
    if isinstance(item, InputCallOutput):
        return ChatMessageBody("tool", item.output, tool_call_id=item.call_id)
    if isinstance(item.content, str):
        return ChatMessageBody(item.role, item.content)
    return ChatMessageBody(item.role, [TextPart("text", part.text) for part in item.content])


def to_response_format(options: TextOptions | None) -> ResponseFormat | None:
    """The form of the answer in the other API."""
    form = options.format if options else None
    if form is None:
        return None
    return ResponseFormat(form.type, JsonSchemaFormat(form.schema) if form.schema is not None else None)


@dataclass(frozen=True)
class OutputText:
    """The text of a message."""

    text: str
    type: Literal["output_text"] = "output_text"
    annotations: list[Any] = field(default_factory=list)
    logprobs: list[Any] = field(default_factory=list)


@dataclass(frozen=True)
class OutputMessage:
    """The reply of the model."""

    id: str
    status: Literal["in_progress", "completed", "incomplete"]
    content: list[OutputText]
    type: Literal["message"] = "message"
    role: Literal["assistant"] = "assistant"


@dataclass(frozen=True)
class OutputCall:
    """A call of a tool."""

    id: str
    call_id: str
    name: str
    arguments: str
    status: Literal["in_progress", "completed"]
    type: Literal["function_call"] = "function_call"


@dataclass(frozen=True)
class TokenDetails:
    """Parts of a number of tokens."""

    cached_tokens: int = 0
    reasoning_tokens: int = 0


@dataclass(frozen=True)
class ResponseUsage:
    """Numbers of tokens."""

    input_tokens: int
    output_tokens: int
    total_tokens: int
    input_tokens_details: TokenDetails = field(default_factory=TokenDetails)
    output_tokens_details: TokenDetails = field(default_factory=TokenDetails)


@dataclass(frozen=True)
class ResponseAnswer:
    """A response."""

    id: str
    object: Literal["response"]
    created_at: int
    status: Literal["in_progress", "completed", "incomplete"]
    model: str
    output: list[OutputMessage | OutputCall]
    usage: ResponseUsage | None = None
    incomplete_details: Annotated[dict[str, str] | None, "Why a response is incomplete."] = None
    error: None = None
    instructions: str | None = None
    metadata: dict[str, str] = field(default_factory=dict)
    max_output_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    parallel_tool_calls: bool = False
    tool_choice: Any = "auto"
    tools: list[Any] = field(default_factory=list)
    text: Any = None
    store: Literal[False] = False
    truncation: Literal["disabled"] = "disabled"
    previous_response_id: None = None
