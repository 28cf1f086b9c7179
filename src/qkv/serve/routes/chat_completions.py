"""POST /v1/chat/completions: reply in a chat."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any

from qkv.decode import GenerationResult, TokenLogprob
from qkv.serve.http.api_error import CONTEXT_LENGTH_EXCEEDED, ApiError
from qkv.serve.http.endpoint import Call, Endpoint
from qkv.serve.routes.chat_types import (
    ChatAnswer,
    ChatBody,
    ChatChoice,
    ChatLogprob,
    ChatLogprobs,
    ChatMessageAnswer,
    ChatMessageBody,
    TopLogprob,
)
from qkv.serve.routes.choices import (
    StopReason,
    Usage,
    cancel_choices,
    close_choices,
    count_usage,
    find_engine,
    make_response_fields,
    stop_reason,
    submit_choices,
    token_logprobs,
)
from qkv.serve.routes.event_stream import EventStream, merge
from qkv.serve.running.generation import Generation
from qkv.serve.running.pool import ServedModel
from qkv.tasks.chat.conversation import DEFAULT_MAX_TOKENS, MIN_REPLY_TOKENS, PLAIN_STOP, Chat


async def reply(call: Call) -> Any:
    """Answer a request."""
    body: ChatBody = call.body
    served = call.server.pool.find(body.model)
    find_engine(served)
    if body.top_logprobs and not body.logprobs:
        raise ApiError(400, "top_logprobs needs logprobs = true", param="top_logprobs")
    wanted = body.max_tokens or body.max_completion_tokens or min(DEFAULT_MAX_TOKENS, call.server.settings.max_tokens)
    with served.in_use():
        roles = ["system" if message.role == "developer" else message.role for message in body.messages]
        contents = map(join_text, body.messages)
        messages = [{"role": role, "content": text} for role, text in zip(roles, contents, strict=True)]
        chat, ids = await asyncio.to_thread(encode_chat, served, messages, wanted, body.template)
        context = served.model.config.stack.max_positions
        generations = await submit_choices(
            call,
            served,
            [ids],
            max_tokens=min(wanted, context - len(ids)) if context else wanted,
            logprobs=body.top_logprobs,
            extra_stop=PLAIN_STOP if chat.template.is_plain else (),
            eos_token_ids=chat.network.config.eos_token_ids,
        )
        writer = ChatWriter(call, served, body, strips=chat.template.is_plain)
        if body.logprobs:
            await served.batcher.call(lambda: served.token_texts)
        if body.stream:
            events = writer.stream(generations, len(ids))
            return EventStream(call, events, lambda: close_choices(call, served, len(ids), generations))
        try:
            results = [await generation.result() for generation in generations]
        finally:
            cancel_choices(generations)
            usage = count_usage(call, served, len(ids), generations)
        return writer.write(results, usage)


def join_text(message: ChatMessageBody) -> str:
    """The text of a message, which may come in parts."""
    if isinstance(message.content, str):
        return message.content
    return "".join(part.text for part in message.content)


def encode_chat(
    served: ServedModel, messages: list[dict[str, str]], max_tokens: int, template: str | None
) -> tuple[Chat, list[int]]:
    """The chat of a model, and the ids of the messages. This blocks, because a template runs in another process."""
    chat = served.find_chat(template)
    ids, num_dropped = chat.truncate_history(messages, min(max_tokens, MIN_REPLY_TOKENS))
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


class ChatWriter:
    """Writes the reply to one request, whole or in chunks."""

    def __init__(self, call: Call, served: ServedModel, body: ChatBody, *, strips: bool) -> None:
        """`strips` removes white space around the reply, as `m.chat` does for a model without a template."""
        self.call, self.served, self.body, self.strips = call, served, body, strips
        self.fields = make_response_fields("chatcmpl", served)

    def write(self, results: Sequence[GenerationResult], usage: Usage) -> ChatAnswer:
        """The whole answer."""
        choices = [
            ChatChoice(
                i,
                ChatMessageAnswer("assistant", result.text.strip() if self.strips else result.text),
                self.describe(result.logprobs[: len(result.ids)]),
                stop_reason(result.finish_reason),
            )
            for i, result in enumerate(results)
        ]
        return ChatAnswer(self.fields.id, "chat.completion", self.fields.created, self.fields.model, choices, usage)

    async def stream(self, generations: Sequence[Generation], num_prompt: int) -> AsyncIterator[dict[str, Any]]:
        """The answer in chunks."""
        with self.served.in_use():
            async for chunk in merge([self.stream_choice(i, one) for i, one in enumerate(generations)]):
                yield chunk
            usage = count_usage(self.call, self.served, num_prompt, generations)
            if self.body.stream_options is not None and self.body.stream_options.include_usage:
                yield {**self.chunk(), "usage": usage}

    async def stream_choice(self, index: int, generation: Generation) -> AsyncIterator[dict[str, Any]]:
        """The chunks of one choice."""
        yield self.chunk(index, {"role": "assistant", "content": ""})
        withheld, is_first = "", self.strips
        async for new in generation.chunks():
            found = token_logprobs(generation, new.first_token, new.last_token) if self.body.logprobs else []
            text = withheld + new.text
            if self.strips:  # white space at the end may turn out to be the end of the reply
                text = text.lstrip() if is_first else text
                withheld = text[len(text.rstrip()) :]
                text = text.rstrip()
                is_first = is_first and not text
            if text or found:
                yield self.chunk(index, {"content": text}, self.describe(found))
        assert isinstance(generation.outcome, GenerationResult)
        yield self.chunk(index, {}, reason=stop_reason(generation.outcome.finish_reason))

    def chunk(
        self,
        index: int = 0,
        delta: dict[str, str] | None = None,
        logprobs: ChatLogprobs | None = None,
        reason: StopReason | None = None,
    ) -> dict[str, Any]:
        """A chunk with one choice, or with none."""
        choice = {"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": reason}
        head = {"id": self.fields.id, "object": "chat.completion.chunk", "created": self.fields.created}
        return {**head, "model": self.fields.model, "choices": [] if delta is None else [choice]}

    def describe(self, found: Sequence[TokenLogprob]) -> ChatLogprobs | None:
        """Log-probabilities in the form of the API, or None if they are not asked for."""
        if not self.body.logprobs:
            return None
        texts = self.served.token_texts

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
