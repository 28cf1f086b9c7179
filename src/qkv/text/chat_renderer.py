"""A process that renders chat templates, with limits on time, memory and output.

A template comes with a model, so it is not trusted. If it takes too long or too much memory, only this process ends.
"""

import atexit
import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from threading import Lock, Timer
from typing import Any

from qkv.errors import QkvError, shorten

PROGRAM = Path(__file__).with_name("chat_renderer_program.py")
MAX_CHARACTERS = 20_000_000  # of a rendered chat
MAX_SECONDS = 5  # of CPU time; a real template takes milliseconds
MAX_WALL_SECONDS = 60.0  # on a busy machine, the process waits for the CPU
MAX_BYTES = 2**29


class ChatRenderer:
    """Renders templates one after the other in one process, which starts with the first of them.

    If a template ends the process, the next one starts another. Every method may be called from any thread.
    """

    def __init__(self) -> None:
        self._lock = Lock()
        self._process: subprocess.Popen[bytes] | None = None

    def render(self, template: str, chats: Sequence[Mapping[str, Any]]) -> list[str | QkvError]:
        """Render a template with the variables of each chat; an error says why a chat cannot be rendered."""
        if not chats:
            return []
        limits = {"max_characters": MAX_CHARACTERS, "max_seconds": MAX_SECONDS, "max_bytes": MAX_BYTES}
        request = json.dumps({"template": template, "chats": chats, **limits}).encode() + b"\n"
        with self._lock:
            answers: list[dict[str, Any]] = []
            try:
                answers = self._ask(request)
            finally:
                if not answers:  # after an interruption, the next caller must not get these answers
                    self._stop()
        if len(chats) > 1 and len(answers) != len(chats):  # one of the chats has ended the process
            return [self.render(template, [variables])[0] for variables in chats]
        return [_text_or_error(answer) for answer in answers or [{}]]

    def close(self) -> None:
        """End the process."""
        with self._lock:
            self._stop()

    def _ask(self, request: bytes) -> list[dict[str, Any]]:
        """Send a request and return the answers. There are none if the process has ended."""
        if self._process is None or self._process.poll() is not None:
            self._stop()
            self._process = subprocess.Popen(
                [sys.executable, "-P", str(PROGRAM)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                process_group=0,  # Ctrl-C is for the program that waits for it
            )
        process = self._process
        assert process.stdin is not None
        assert process.stdout is not None
        timer = Timer(MAX_WALL_SECONDS, process.kill)
        timer.start()
        try:
            process.stdin.write(request)
            process.stdin.flush()
            line = process.stdout.readline()
            answers: list[dict[str, Any]] = json.loads(line) if line.endswith(b"\n") else []
            return answers
        except OSError:
            return []
        except ValueError:
            return [{"error": "its output cannot be read"}]
        finally:
            timer.cancel()

    def _stop(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            with suppress(OSError), process:  # closes the pipes and waits for the end
                process.kill()


def _text_or_error(answer: Mapping[str, Any]) -> str | QkvError:
    if "text" in answer:
        return str(answer["text"])
    reason = answer.get("error", "it needs too much time or memory")
    return QkvError(
        f"the chat template cannot be rendered ({shorten(reason, 300)}); choose another template, or chat without one: "
        'template="plain" (--template plain)'
    )


_PROCESSES: dict[int, ChatRenderer] = {}  # by the id of the program, because a fork must not share its pipes


def render_in_sandbox(template: str, chats: Sequence[Mapping[str, Any]]) -> list[str | QkvError]:
    """Render a template with the variables of each chat, in the process that all chats of this program share."""
    if os.getpid() not in _PROCESSES:
        atexit.register(_PROCESSES.setdefault(os.getpid(), ChatRenderer()).close)
    return _PROCESSES[os.getpid()].render(template, chats)
