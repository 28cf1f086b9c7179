"""Renders chat templates in a sandboxed process, because a template comes with a model and is not trusted."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from qkv.errors import QkvError, shorten
from qkv.sandbox import ProcessLimits, Sandbox, shared_sandbox

WORKER = Path(__file__).with_name("chat_template_worker.py")
MAX_CHARACTERS = 20_000_000  # of a rendered chat
LIMITS = ProcessLimits(max_seconds=5, max_bytes=2**29, max_wall_seconds=60.0)  # a real template takes milliseconds


class ChatRenderer:
    """Renders templates one after the other in one process, or in the process that all chats of this program share."""

    def __init__(self, sandbox: Sandbox | None = None) -> None:
        self.sandbox = sandbox or Sandbox(WORKER, LIMITS)

    def render(self, template: str, chats: Sequence[Mapping[str, Any]]) -> list[str | QkvError]:
        """Render a template with the variables of each chat; an error says why a chat cannot be rendered."""
        shared = {"template": template, "max_characters": MAX_CHARACTERS}
        return [_text_or_error(answer) for answer in self.sandbox.run(shared, chats)]

    def close(self) -> None:
        """End the process."""
        self.sandbox.close()


def _text_or_error(answer: Mapping[str, Any]) -> str | QkvError:
    if "result" in answer:
        return str(answer["result"])
    return QkvError(
        f"the chat template cannot be rendered ({shorten(answer['error'], 300)}); choose another template, or chat "
        'without one: template="plain" (--template plain)'
    )


def render_in_sandbox(template: str, chats: Sequence[Mapping[str, Any]]) -> list[str | QkvError]:
    """Render a template with the variables of each chat, in the process that all chats of this program share."""
    return ChatRenderer(shared_sandbox(WORKER, LIMITS)).render(template, chats)
