"""Chats about images over /v1/chat/completions. Images come as data URLs: the server fetches nothing."""

from collections.abc import AsyncIterator
from typing import Any

from qkv.serve.http.api_error import ApiError
from qkv.serve.http.endpoint import Call
from qkv.serve.routes.chat_types import ChatAnswer, ChatBody, ChatChoice, ChatMessageAnswer, ChatMessageBody, ImagePart
from qkv.serve.routes.choices import Usage, make_response_fields, stop_reason
from qkv.serve.routes.event_stream import EventStream
from qkv.serve.routes.task_routes import read_payload
from qkv.serve.running.pool import ServedModel
from qkv.tasks.chat.conversation import DEFAULT_MAX_TOKENS, ChatReply
from qkv.tasks.chat.image_chat import IMAGE_PART, ImageChat
from qkv.tasks.image_to_text import ImageToText
from qkv.tasks.table import find_task


def reads_images(served: ServedModel) -> bool:
    """Whether a model answers questions about images, or describes them."""
    return bool(served.model.config.front_ends) and isinstance(find_task(served.model.config), ImageToText)


async def reply_about_images(call: Call, served: ServedModel) -> Any:
    """Answer a request."""
    body: ChatBody = call.body
    if body.n != 1:
        raise ApiError(400, f"n = {body.n}: a model of images gives one reply; leave n out", param="n")
    task: Any = find_task(served.model.config)
    messages = [read_message(message) for message in body.messages]
    wanted = body.max_tokens or body.max_completion_tokens or DEFAULT_MAX_TOKENS
    options: dict[str, Any] = {"max_tokens": min(wanted, call.server.settings.max_tokens)}
    if body.temperature and body.seed is not None:  # without a seed, the likeliest answer
        options |= {"temperature": body.temperature, "top_p": body.top_p, "seed": body.seed}

    def run(several: list[Any], _: Any) -> list[ChatReply]:
        chat = ImageChat(served.model.find_model(task), task)
        return [chat.reply(one, **options) for one in several]

    (found,) = await served.batcher.map(run, [messages], key=("image chat", repr(sorted(options.items()))))
    usage = Usage(0, len(found.ids), len(found.ids))
    fields, reason = make_response_fields("chatcmpl", served), stop_reason(found.finish_reason)
    if not body.stream:
        choice = ChatChoice(0, ChatMessageAnswer("assistant", found.text), None, reason)
        return ChatAnswer(fields.id, "chat.completion", fields.created, fields.model, [choice], usage)
    head = {"id": fields.id, "object": "chat.completion.chunk", "created": fields.created, "model": fields.model}

    async def stream() -> AsyncIterator[dict[str, Any]]:
        for delta, end in (({"role": "assistant", "content": found.text}, None), ({}, reason)):
            yield {**head, "choices": [{"index": 0, "delta": delta, "logprobs": None, "finish_reason": end}]}

    return EventStream(call, stream(), lambda: None)


def read_message(message: ChatMessageBody) -> dict[str, Any]:
    """A message with its images as bytes."""
    content: Any = message.content or ""
    if not isinstance(content, str):
        content = [
            {"type": IMAGE_PART, IMAGE_PART: read_payload(number, part.image_url.url)}
            if isinstance(part, ImagePart)
            else {"type": "text", "text": part.text}
            for number, part in enumerate(content, start=1)
        ]
    return {"role": message.role, "content": content}
