"""POST /v1/responses: reply in a chat, with the items and events of OpenAI's newer API, for texts and tools."""

import secrets
from collections.abc import AsyncIterator, Iterator
from dataclasses import asdict, replace
from itertools import count
from typing import Any

from qkv.decode import GenerationResult
from qkv.serve.http.endpoint import Call, Endpoint
from qkv.serve.routes.chat_replies import ChatReplies, find_chat_model, start_replies, write_call
from qkv.serve.routes.choices import Usage, make_response_fields
from qkv.serve.routes.event_stream import EventStream
from qkv.serve.routes.response_types import (
    OutputCall,
    OutputMessage,
    OutputText,
    ResponseAnswer,
    ResponseBody,
    ResponseUsage,
)


async def respond(call: Call) -> Any:
    """Answer a request."""
    body: ResponseBody = call.body
    served = find_chat_model(call)
    with served.in_use():
        replies = await start_replies(replace(call, body=body.to_chat()), served)
        writer = ResponseWriter(replies, body)
        if body.stream:
            return EventStream(call, writer.stream(), replies.close)
        (result,), usage = await replies.results()
        return writer.write(result, usage)


class ResponseWriter:
    """Writes the response to one request, whole or as events."""

    def __init__(self, replies: ChatReplies, body: ResponseBody) -> None:
        self.replies, self.item_id = replies, secrets.token_hex(12)
        fields = make_response_fields("resp", replies.served)
        self.begun = ResponseAnswer(
            fields.id.replace("-", "_"), "response", fields.created, "in_progress", fields.model, [],
            instructions=body.instructions, metadata=body.metadata or {}, max_output_tokens=body.max_output_tokens,
            temperature=1.0 if body.temperature is None else body.temperature,
            top_p=1.0 if body.top_p is None else body.top_p,
            tool_choice=body.tool_choice or "auto", tools=[asdict(tool) for tool in body.tools or ()],
            text={"format": {"type": "text"}} if body.text is None else asdict(body.text),
        )  # fmt: skip
        self.numbers = count()

    def write(self, result: GenerationResult, usage: Usage) -> ResponseAnswer:
        """The whole response."""
        text, found, reason = self.replies.read(result)
        is_whole = reason != "length"
        item: OutputMessage | OutputCall = self.message(text, "completed" if is_whole else "incomplete")
        if found is not None:
            part = write_call(found)
            name, arguments = part.function.name, part.function.arguments
            item = OutputCall(f"fc_{self.item_id}", part.id, name, arguments, "completed")
        return replace(
            self.begun,
            status="completed" if is_whole else "incomplete",
            output=[item],
            usage=ResponseUsage(usage.prompt_tokens, usage.completion_tokens, usage.total_tokens),
            incomplete_details=None if is_whole else {"reason": "max_output_tokens"},
        )

    def message(self, text: str, status: Any) -> OutputMessage:
        """The reply as an item."""
        return OutputMessage(f"msg_{self.item_id}", status, [OutputText(text)])

    async def stream(self) -> AsyncIterator[dict[str, Any]]:
        """The response as events."""
        with self.replies.served.in_use():
            yield self.event("response.created", response=self.begun)
            yield self.event("response.in_progress", response=self.begun)
            (generation,) = self.replies.generations
            has_text = False
            async for new in self.replies.parts(generation):
                if new.text and not has_text:
                    for event in self.begin_message():
                        yield event
                    has_text = True
                if new.text:
                    yield self.text_event("response.output_text.delta", delta=new.text, logprobs=[])
            assert isinstance(generation.outcome, GenerationResult)
            answer = self.write(generation.outcome, self.replies.count_usage())
            (item,) = answer.output
            if isinstance(item, OutputMessage) and not has_text:
                for event in self.begin_message():
                    yield event
            for event in self.end_message(item) if isinstance(item, OutputMessage) else self.write_call(item):
                yield event
            yield self.event("response.output_item.done", output_index=0, item=item)
            yield self.event(f"response.{answer.status}", response=answer)

    def begin_message(self) -> Iterator[dict[str, Any]]:
        """The events before the first text."""
        empty = replace(self.message("", "in_progress"), content=[])
        yield self.event("response.output_item.added", output_index=0, item=empty)
        yield self.text_event("response.content_part.added", part=OutputText(""))

    def end_message(self, item: OutputMessage) -> Iterator[dict[str, Any]]:
        """The events after the last text."""
        (part,) = item.content
        yield self.text_event("response.output_text.done", text=part.text, logprobs=[])
        yield self.text_event("response.content_part.done", part=part)

    def write_call(self, item: OutputCall) -> Iterator[dict[str, Any]]:
        """The events of a call, whose arguments are sent at once."""
        place = {"output_index": 0, "item_id": item.id}
        begun = replace(item, arguments="", status="in_progress")
        yield self.event("response.output_item.added", output_index=0, item=begun)
        yield self.event("response.function_call_arguments.delta", delta=item.arguments, **place)
        yield self.event("response.function_call_arguments.done", name=item.name, arguments=item.arguments, **place)

    def text_event(self, kind: str, **fields: Any) -> dict[str, Any]:
        """An event about the text of the message."""
        return self.event(kind, item_id=f"msg_{self.item_id}", output_index=0, content_index=0, **fields)

    def event(self, kind: str, **fields: Any) -> dict[str, Any]:
        """An event with its number."""
        return {"type": kind, "sequence_number": next(self.numbers), **fields}


ENDPOINTS = (
    Endpoint(
        "POST",
        "/v1/responses",
        respond,
        "Reply in a chat, with items and events.",
        body=ResponseBody,
        answer=ResponseAnswer,
        has_stream=True,
    ),
)
