"""`qkv chat`: chat with a model at a terminal, or with the lines of stdin as messages."""

import json as json_format
import re
import shlex
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from qkv.cli.shared import Device, Int8, Json, check_minimum, fast_imports
from qkv.errors import QkvError, UsageError
from qkv.files import replace_nonfinite

if TYPE_CHECKING:
    from qkv.tasks.chat.conversation import Chat

PROMPT = "> "
COMMAND = re.compile(r"\s*/\w*(\s|$)")  # not a path, nor a comment of a program
HELP = """/reset          forget the chat; the system prompt stays
/reset all      forget the chat and the system prompt
/system         show the system prompt
/system TEXT    forget the chat, and start a new one with this system prompt
/help           this help
Ctrl-C          stop an answer
Ctrl-D          end"""


def chat(
    model: str,
    /,
    *,
    system: str | None = None,
    max_tokens: int = 512,
    temperature: float = 0.0,
    top_p: float = 1.0,
    seed: int | None = None,
    template: str | None = None,
    special: Annotated[bool, Parameter(negative=())] = False,
    device: Device = "cpu",
    int8: Int8 = False,
    json: Json = False,
) -> None:
    """Chat with a model.

    At a terminal, type a message and press Enter. Ctrl-C stops an answer, Ctrl-D ends the program, and /help lists the
    commands. Without a terminal, each line of stdin is a message.

    Example:
        qkv chat models/smollm2 --system "Answer in one sentence."

    Parameters
    ----------
    model
        A model folder, a hub id or a GGUF file with a chat template; or a model that answers questions about images or
        describes them: the path of an image in a message shows the image to it.
    system
        The system prompt: instructions for the model before the first message.
    max_tokens
        Maximum number of new tokens of an answer.
    temperature
        0: always take the most likely token. Higher values give more varied answers.
    top_p
        Sample from the most likely tokens with this total probability.
    seed
        Seed of the random numbers: the same seed gives the same answers.
    template
        For a model without a chat template, use plain: it writes "User: …" and "Assistant: …".
    special
        Parse the names of control tokens in messages, such as <|im_end|>. Use it only for your own messages.
    int8
        Quantize the linear layers to int8, for CPUs.
    json
        Print one JSON object for each answer.
    """
    check_minimum("max-tokens", max_tokens, 1)
    if sys.stdin is None:
        raise QkvError("there is no input, because stdin is closed; write messages to stdin, one per line")
    with fast_imports():
        from qkv import api
        from qkv.data.modalities import reads_files
        from qkv.tasks.table import TASKS, find_task

    loaded = api.load(model, device=device)
    task, language = find_task(loaded.config), TASKS["complete"]
    sampling = {"temperature": temperature, "top_p": top_p, "seed": seed}
    if task.name in ("ask", "describe") and reads_files(loaded.config):
        from qkv.tasks.chat.image_chat import ImageChat, split_paths

        about_images: Any = ImageChat(loaded.find_model(task), task)
        run_chat(ChatSession(about_images, None, {"max_tokens": max_tokens, **sampling}, json, split_paths))
        return
    if task != language:
        raise UsageError(
            f"qkv chat needs a model that {language.description}, but {model} is a model that {task.description}; "
            f"use qkv run {shlex.quote(model)}"
        )
    chat = (loaded.quantize() if int8 else loaded).find_chat(template)
    session = ChatSession(chat, system, {"max_tokens": max_tokens, "special": special, **sampling}, json)
    run_chat(session)


def run_chat(session: "ChatSession") -> None:
    """Chat at a terminal, or with the lines of stdin."""
    if sys.stdin.isatty():
        session.run_at_terminal()
    else:
        for number, line in enumerate(sys.stdin.buffer, 1):
            try:
                text = line.decode("utf-8").rstrip("\r\n")
            except UnicodeDecodeError as error:
                raise QkvError(f"stdin, line {number}: not UTF-8 ({error.reason}); convert the input") from None
            if text.strip():
                session.answer(text)


def is_command(line: str) -> bool:
    """Whether a line is a command. A paste of several lines is a message, unless it sets a system prompt.

    >>> is_command("/help"), is_command("/etc/hosts"), is_command("/help\\nor not"), is_command("/system Be\\nkind.")
    (True, False, False, True)
    """
    return COMMAND.match(line) is not None and ("\n" not in line.strip() or line.split()[0] == "/system")


class ChatSession:
    """A chat with its messages so far."""

    def __init__(
        self,
        chat: "Chat",
        system: str | None,
        options: dict[str, Any],
        json: bool,
        read: Callable[[str], Any] = str,
    ) -> None:
        """`read` turns a line into the content of a message."""
        self.chat, self.options, self.json, self.read = chat, options, json, read
        self.messages: list[Any] = []
        self.reset(system)

    def reset(self, system: str | None) -> None:
        """Forget all messages."""
        self.system = system
        self.messages = [] if system is None else [{"role": "system", "content": system}]

    def run_at_terminal(self) -> None:
        """Read messages and commands from the terminal until Ctrl-D."""
        with suppress(ImportError):
            import readline  # gives input() line editing and a history

            readline.parse_and_bind("set enable-bracketed-paste on")  # a paste of several lines is one message
        print("Type a message; /help lists the commands; Ctrl-D ends.", file=sys.stderr)
        while True:
            try:
                line = input(PROMPT)
            except EOFError:
                print()
                return
            except KeyboardInterrupt:  # Ctrl-C discards the line
                print()
                continue
            if is_command(line):
                self.run_command(line)
            elif line.strip():
                self.answer(line)

    def run_command(self, line: str) -> None:
        """Run a command such as /reset."""
        name, *rest = line.strip().split(maxsplit=1)
        text = "".join(rest)
        if name == "/reset" and not text:
            self.reset(self.system)
            message = "The chat was forgotten."
        elif name == "/reset" and text == "all":
            self.reset(None)
            message = "The chat and the system prompt were forgotten."
        elif name == "/system" and text:
            self.reset(text)
            message = "The system prompt is set, and the chat starts again."
        elif name == "/system":
            message = "There is no system prompt." if self.system is None else f"System prompt: {self.system}"
        else:
            message = HELP if name == "/help" else f"there is no command {line.strip()}\n{HELP}"
        print(message, file=sys.stderr)

    def answer(self, text: str) -> None:
        """Print the answer to a message while it is generated, and keep both."""
        asked, parts = [*self.messages, {"role": "user", "content": self.read(text)}], []

        def on_text(part: str) -> None:
            parts.append(part)
            if not self.json:
                print(part, end="", flush=True)

        try:
            reply = self.chat.reply(asked, on_text=on_text, **self.options)
        except KeyboardInterrupt:
            if not sys.stdin.isatty():
                raise
            print(" [stopped]", flush=True)
            self.messages = [*asked, {"role": "assistant", "content": "".join(parts)}]
            return
        except QkvError as error:  # such as a message that is too long: the chat continues without it
            if not sys.stdin.isatty():
                raise
            print(f"qkv: {error}", file=sys.stderr)
            return
        self.messages = reply.messages
        if self.json:
            values = replace_nonfinite({"input": text, **reply.to_dict()})
            print(json_format.dumps(values, ensure_ascii=False, allow_nan=False), flush=True)
        else:
            print(flush=True)
            if reply.finish_reason == "length" and sys.stdin.isatty():
                is_full = len(reply.ids) < self.options["max_tokens"]
                limit = "the model's context is full" if is_full else f"--max-tokens is {len(reply.ids)}"
                print(f"[the answer was cut: {limit}]", file=sys.stderr)
