"""Chat about images: the model answers the last message from the images of the chat.

The content of a message is a text, or a list of parts: texts and images. The images of the latest message that has some
are the ones that the model sees. It reads only the last question, because it was trained on single questions.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from qkv.errors import UsageError
from qkv.tasks.chat.conversation import DEFAULT_MAX_TOKENS, ChatReply
from qkv.tasks.task import Task
from qkv.tasks.text_model import TextModel

IMAGE_PART = "image"
IMAGE_NAME = re.compile(r"""(?:"([^"]+)"|'([^']+)'|(\S+))""")
SUFFIXES = {".png", ".jpg", ".jpeg", ".gif", ".bmp", ".webp", ".tif", ".tiff", ".ppm", ".pgm"}


class ImageChat:
    """A model that answers questions about images, or describes them, as one side of a chat."""

    def __init__(self, model: TextModel, task: Task) -> None:
        self.model, self.task = model, task

    def reply(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        on_text: Callable[[str], None] | None = None,
        max_tokens: int = DEFAULT_MAX_TOKENS,
        **options: Any,
    ) -> ChatReply:
        """The reply to the last message."""
        images, question = find_images(messages), join_text(messages[-1])
        if not images:
            raise UsageError("there is no image in the chat yet; begin with one, such as: picture.png what is this?")
        value: Any = (tuple(images), question) if self.task.name == "ask" else images[-1]
        if self.task.name == "ask" and not question:
            raise UsageError("the message has an image and no question; ask something about the image")
        sampling = {name: value for name, value in options.items() if name in ("temperature", "top_p", "seed")}
        if not sampling.get("temperature"):
            sampling = {}
        result: Any = self.task.run(self.model, [value], {"max_tokens": max_tokens, **sampling})[0]
        if on_text is not None:
            on_text(result.text)
        history = [*messages, {"role": "assistant", "content": result.text}]
        return ChatReply(result.text, result.finish_reason, result.ids, result.score, history)


def join_text(message: Mapping[str, Any]) -> str:
    """The text of a message."""
    content = message["content"]
    if isinstance(content, str):
        return content.strip()
    return " ".join(part["text"] for part in content if part["type"] == "text").strip()


def find_images(messages: Sequence[Mapping[str, Any]]) -> list[Any]:
    """The images of the latest message that has some."""
    for message in reversed(messages):
        parts = [] if isinstance(message["content"], str) else message["content"]
        if found := [part[IMAGE_PART] for part in parts if part["type"] == IMAGE_PART]:
            return found
    return []


def split_paths(text: str) -> Any:
    """A line that a user typed as the content of a message: the paths of image files in it become images.

    >>> split_paths("is there a circle?")
    'is there a circle?'
    """
    parts: list[dict[str, Any]] = []
    rest, last = [], 0
    for word in IMAGE_NAME.finditer(text):
        path = Path(next(filter(None, word.groups()))).expanduser()
        if path.suffix.lower() in SUFFIXES and path.is_file():
            parts.append({"type": IMAGE_PART, IMAGE_PART: str(path)})
            rest.append(text[last : word.start()])
            last = word.end()
    if not parts:
        return text
    question = " ".join("".join([*rest, text[last:]]).split())
    return [*parts, *([{"type": "text", "text": question}] if question else [])]
