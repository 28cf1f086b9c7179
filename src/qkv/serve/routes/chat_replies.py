"""The replies of a chat model to one request, shared by the routes of both chat APIs.

Messages and tools go in; texts and calls of tools come out.
"""

import asyncio
import json
import secrets
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from qkv.decode import GenerationResult
from qkv.serve.http.api_error import CONTEXT_LENGTH_EXCEEDED, ApiError
from qkv.serve.http.endpoint import Call
from qkv.serve.routes.chat_types import (
    ChatBody,
    ChatMessageBody,
    ChatStopReason,
    FunctionCall,
    ImagePart,
    ToolBody,
    ToolCallPart,
    ToolChoiceBody,
)
from qkv.serve.routes.choices import (
    Usage,
    cancel_choices,
    close_choices,
    count_usage,
    find_engine,
    stop_reason,
    submit_choices,
)
from qkv.serve.routes.generation_body import has_constraint
from qkv.serve.running.generation import Generation
from qkv.serve.running.pool import ServedModel
from qkv.tasks.chat.conversation import DEFAULT_MAX_TOKENS, MIN_REPLY_TOKENS, PLAIN_STOP, Chat
from qkv.tasks.chat.tools import CallFilter, CallFormat, Tool, ToolCall, choose_tools, make_tools
from qkv.text.chat_template import Message


@dataclass(frozen=True)
class ReplyPart:
    """A part of the text of a reply, and the range of the tokens that were generated since the last part."""

    text: str
    first_token: int
    last_token: int


@dataclass(frozen=True)
class ChatReplies:
    """The generations that reply to one request."""

    call: Call
    served: ServedModel
    generations: Sequence[Generation]
    num_prompt: int  # tokens
    strips: bool  # white space around the reply, as `m.chat` does for a model without a template
    call_format: CallFormat | None  # None: there are no tools

    async def results(self) -> tuple[list[GenerationResult], Usage]:
        """All replies at their end."""
        try:
            results = [await generation.result() for generation in self.generations]
        finally:
            cancel_choices(self.generations)
            usage = self.count_usage()
        return results, usage

    def count_usage(self) -> Usage:
        """The numbers of tokens, which are counted once."""
        return count_usage(self.call, self.served, self.num_prompt, self.generations)

    def close(self) -> None:
        """End a stream."""
        close_choices(self.call, self.served, self.num_prompt, self.generations)

    def read(self, result: GenerationResult) -> tuple[str, ToolCall | None, ChatStopReason]:
        """The text or the call in a finished reply, and why it ended."""
        found = self.call_format.parse(result.text) if self.call_format else None
        if found is not None:
            return "", found, "tool_calls"
        return result.text.strip() if self.strips else result.text, None, stop_reason(result.finish_reason)

    async def parts(self, generation: Generation) -> AsyncIterator[ReplyPart]:
        """The text of a reply while it is generated. A call has parts without text."""
        shown: list[str] = []
        calls = CallFilter(self.call_format, shown.append) if self.call_format else None
        withheld, is_first, last = "", self.strips, 0
        async for new in generation.chunks():
            text, last = new.text, new.last_token
            if calls is not None:
                calls.add(text)
                text = "".join(shown)
                shown.clear()
            text = withheld + text
            if self.strips:  # white space at the end may turn out to be the end of the reply
                text = text.lstrip() if is_first else text
                withheld = text[len(text.rstrip()) :]
                text = text.rstrip()
                is_first = is_first and not text
            yield ReplyPart(text, new.first_token, last)
        if calls is not None and calls.close() is None and shown:
            yield ReplyPart("".join(shown), last, last)


async def start_replies(call: Call, served: ServedModel) -> ChatReplies:
    """Encode the messages of a request, whose body is a `ChatBody`, and submit its replies."""
    body: ChatBody = call.body
    wanted = body.max_tokens or body.max_completion_tokens or min(DEFAULT_MAX_TOKENS, call.server.settings.max_tokens)
    choice = body.tool_choice.function.name if isinstance(body.tool_choice, ToolChoiceBody) else body.tool_choice
    messages = [read_message(message) for message in body.messages]
    tools = choose_tools(make_tools([read_tool(tool) for tool in body.tools or ()]), choice or "auto")
    if tools and has_constraint(body):
        raise ApiError(400, "tools exclude response_format, regex and grammar; leave out all but one")
    chat, ids = await asyncio.to_thread(encode_chat, served, messages, wanted, body.template, tools)
    context = served.model.config.stack.max_positions
    generations = await submit_choices(
        call,
        served,
        [ids],
        max_tokens=min(wanted, context - len(ids)) if context else wanted,
        logprobs=body.top_logprobs,
        extra_stop=PLAIN_STOP if chat.template.is_plain else (),
        eos_token_ids=chat.network.config.eos_token_ids,
        constrain=partial(chat.constrain_to_tools, tools, choice or "auto") if tools else None,
    )
    form = chat.call_format if tools else None
    return ChatReplies(call, served, generations, len(ids), chat.template.is_plain, form)


def find_chat_model(call: Call) -> ServedModel:
    """The model of a request; an error if it does not generate text."""
    served = call.server.pool.find(call.body.model)
    find_engine(served)
    return served


def read_message(message: ChatMessageBody) -> Message:
    """A message for the chat template. Its text may come in parts, and the arguments of calls are texts of JSON."""
    if message.content is None and not message.tool_calls:
        raise ApiError(400, f"a message of the role {message.role} has no content", param="messages")
    parts = [] if isinstance(message.content, str) else message.content or []
    if any(isinstance(part, ImagePart) for part in parts):
        raise ApiError(400, "a message has an image, but this model reads only texts", param="messages")
    text = message.content if isinstance(message.content, str) else "".join(part.text for part in parts)  # type: ignore[union-attr]
    read: dict[str, Any] = {"role": "system" if message.role == "developer" else message.role, "content": text}
    if message.tool_calls:
        calls = [ToolCall(one.function.name, read_arguments(one.function)) for one in message.tool_calls]
        read["tool_calls"] = [one.to_dict() for one in calls]
    return read if message.tool_call_id is None else {**read, "tool_call_id": message.tool_call_id}


def read_arguments(function: FunctionCall) -> dict[str, Any]:
    """The arguments of an earlier call."""
    try:
        value = json.loads(function.arguments)
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        raise ApiError(400, f"the arguments of a call of {function.name} are not a JSON object", param="messages")
    return value


def read_tool(tool: ToolBody) -> Tool:
    """A tool of a request."""
    given = tool.function
    return Tool(given.name, given.description, **({} if given.parameters is None else {"parameters": given.parameters}))


def write_call(call: ToolCall) -> ToolCallPart:
    """The call of a tool, with a new id."""
    arguments = json.dumps(call.arguments, ensure_ascii=False)
    return ToolCallPart(f"call_{secrets.token_hex(12)}", "function", FunctionCall(call.name, arguments))


def encode_chat(
    served: ServedModel, messages: list[Message], max_tokens: int, template: str | None, tools: list[Tool]
) -> tuple[Chat, list[int]]:
    """The chat of a model, and the ids of the messages. This blocks, because a template runs in another process."""
    chat = served.find_chat(template)
    if tools:
        _ = chat.call_format  # an error if the template has no tools
    ids, num_dropped = chat.truncate_history(messages, min(max_tokens, MIN_REPLY_TOKENS), tools=tools)
    if num_dropped:
        context = served.model.config.stack.max_positions
        raise ApiError(
            400,
            f"the messages have too many tokens for the model's context of {context:,}; without the first "
            f"{num_dropped} of them, they would fit",
            param="messages",
            code=CONTEXT_LENGTH_EXCEEDED,
        )
    return chat, ids
