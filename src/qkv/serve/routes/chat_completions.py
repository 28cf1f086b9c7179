"""POST /v1/chat/completions: reply in a chat."""

from collections.abc import AsyncIterator, Sequence
from dataclasses import asdict
from typing import Any

from qkv.decode import GenerationResult, TokenLogprob
from qkv.serve.http.api_error import ApiError
from qkv.serve.http.endpoint import Call, Endpoint
from qkv.serve.routes.chat_replies import ChatReplies, find_chat_model, start_replies, write_call
from qkv.serve.routes.chat_types import (
    ChatAnswer,
    ChatBody,
    ChatChoice,
    ChatLogprob,
    ChatLogprobs,
    ChatMessageAnswer,
    ChatStopReason,
    TopLogprob,
)
from qkv.serve.routes.choices import Usage, make_response_fields, token_logprobs
from qkv.serve.routes.event_stream import EventStream, merge
from qkv.serve.routes.image_chat import reads_images, reply_about_images
from qkv.serve.running.generation import Generation


async def reply(call: Call) -> Any:
    """Answer a request."""
    body: ChatBody = call.body
    served = call.server.pool.find(body.model)
    if reads_images(served):
        with served.in_use():
            return await reply_about_images(call, served)
    served = find_chat_model(call)
    if body.top_logprobs and not body.logprobs:
        raise ApiError(400, "top_logprobs needs logprobs = true", param="top_logprobs")
    with served.in_use():
        replies = await start_replies(call, served)
        if body.logprobs:
            await served.batcher.call(lambda: served.token_texts)
        writer = ChatWriter(replies, body)
        if body.stream:
            return EventStream(call, writer.stream(), replies.close)
        return writer.write(*await replies.results())


class ChatWriter:
    """Writes the replies to one request, whole or in chunks."""

    def __init__(self, replies: ChatReplies, body: ChatBody) -> None:
        self.replies, self.body = replies, body
        self.fields = make_response_fields("chatcmpl", replies.served)

    def write(self, results: Sequence[GenerationResult], usage: Usage) -> ChatAnswer:
        """The whole answer."""
        choices = []
        for i, result in enumerate(results):
            text, found, reason = self.replies.read(result)
            message = ChatMessageAnswer("assistant", text)
            if found is not None:
                message = ChatMessageAnswer("assistant", None, tool_calls=[write_call(found)])
            choices.append(ChatChoice(i, message, self.describe(result.logprobs[: len(result.ids)]), reason))
        return ChatAnswer(self.fields.id, "chat.completion", self.fields.created, self.fields.model, choices, usage)

    async def stream(self) -> AsyncIterator[dict[str, Any]]:
        """The answer in chunks."""
        with self.replies.served.in_use():
            async for chunk in merge([self.stream_choice(i, one) for i, one in enumerate(self.replies.generations)]):
                yield chunk
            usage = self.replies.count_usage()
            if self.body.stream_options is not None and self.body.stream_options.include_usage:
                yield {**self.chunk(), "usage": usage}

    async def stream_choice(self, index: int, generation: Generation) -> AsyncIterator[dict[str, Any]]:
        """The chunks of one choice."""
        yield self.chunk(index, {"role": "assistant", "content": ""})
        async for new in self.replies.parts(generation):
            found = token_logprobs(generation, new.first_token, new.last_token) if self.body.logprobs else []
            if new.text or found:
                yield self.chunk(index, {"content": new.text}, self.describe(found))
        assert isinstance(generation.outcome, GenerationResult)
        _, tool_call, reason = self.replies.read(generation.outcome)
        if tool_call is not None:
            yield self.chunk(index, {"tool_calls": [{"index": 0, **asdict(write_call(tool_call))}]})
        yield self.chunk(index, {}, reason=reason)

    def chunk(
        self,
        index: int = 0,
        delta: dict[str, Any] | None = None,
        logprobs: ChatLogprobs | None = None,
        reason: ChatStopReason | None = None,
    ) -> dict[str, Any]:
        """A chunk with one choice, or with none."""
        choice = {"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": reason}
        head = {"id": self.fields.id, "object": "chat.completion.chunk", "created": self.fields.created}
        return {**head, "model": self.fields.model, "choices": [] if delta is None else [choice]}

    def describe(self, found: Sequence[TokenLogprob]) -> ChatLogprobs | None:
        """Log-probabilities in the form of the API, or None if they are not asked for."""
        if not self.body.logprobs:
            return None
        texts = self.replies.served.token_texts

        def name(token: int, logprob: float) -> tuple[str, float, list[int]]:
            return texts.text_of(token), logprob, list(texts.bytes_of(token))

        return ChatLogprobs(
            [
                ChatLogprob(
                    *name(one.id, one.logprob), [TopLogprob(*name(*other)) for other in one.alternatives.items()]
                )
                for one in found
            ]
        )


ENDPOINTS = (
    Endpoint(
        "POST",
        "/v1/chat/completions",
        reply,
        "Reply in a chat.",
        body=ChatBody,
        answer=ChatAnswer,
        has_stream=True,
    ),
)
