"""`m.chat` and `qkv chat`: the prompt, the history and its cut, streams, and the terminal."""

import io
import json
import os
import pty
import select
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from chat_models import chat_model

import qkv
from qkv import cli
from qkv.blocks import HeadConfig
from qkv.cli.chat import HELP, ChatSession
from qkv.decode import GenerationOptions
from qkv.errors import UsageError
from qkv.tasks.chat.conversation import ChatReply

MODEL = chat_model()


def ids_of(text: str) -> list[int]:
    return MODEL.tokenizer.encode(text, add_special_tokens=False, parse_special_tokens=True)


def test_the_reply_continues_the_rendered_chat() -> None:
    reply = MODEL.chat("Hello", system="Be kind.", max_tokens=5)
    prompt = "<|im_start|>system\nBe kind.<|im_end|>\n<|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\n"
    assert isinstance(reply, ChatReply)
    assert reply.ids == MODEL.generate(ids_of(prompt), max_tokens=5).ids
    assert [message["role"] for message in reply.messages] == ["system", "user", "assistant"]
    assert reply.messages[-1]["content"] == reply.text
    assert json.loads(json.dumps(reply.to_dict()))["text"] == str(reply)


def test_the_token_that_ends_a_message_of_the_template_ends_a_reply() -> None:
    model = chat_model()
    chat = model.find_chat()
    assert chat.network.config.eos_token_ids == (0, 2)
    assert model.network.config.eos_token_ids == (0,)  # of the model itself, nothing changes
    assert next(chat.network.parameters()) is next(model.network.parameters())


PHI3 = "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>\n' }}{% endfor %}"
PHI3 += "{% if not add_generation_prompt %}<|endoftext|>{% endif %}"
NEEDS_SYSTEM_PROMPT = (
    "{% if messages[0]['role'] != 'system' %}{{ raise_exception('no system prompt') }}{% endif %}" + PHI3
)


@pytest.mark.parametrize(
    ("template", "end_tokens"),
    [
        (PHI3, (0, 2)),
        (NEEDS_SYSTEM_PROMPT, (0, 2)),
        ("{% for m in messages %}{{ m['content'] }}\n\n<|im_end|>{% endfor %}", (0, 2)),
        ("<|im_start|>{% for m in messages %}# {{ m['role'] }}: {{ m['content'] }}\n{% endfor %}", (0,)),
        ("{% for m in messages %}<|im_start|>{{ m['content'] }}{% endfor %}\nEnd<|im_end|>", (0,)),
    ],
)
def test_an_end_token_comes_directly_after_an_answer(template: str, end_tokens: tuple[int, ...]) -> None:
    assert chat_model(template=template).find_chat().network.config.eos_token_ids == end_tokens


def test_a_template_that_needs_a_system_prompt() -> None:
    model = chat_model(template=NEEDS_SYSTEM_PROMPT)
    assert model.chat("Hello", system="Be kind.", max_tokens=2).messages[-1]["role"] == "assistant"
    with pytest.raises(qkv.QkvError, match="no system prompt"):
        model.chat("Hello")


@pytest.mark.parametrize("option", [{"max_tokens": "5"}, {"stream": "yes"}, {"special": "x"}])
def test_options_of_other_types_are_refused(option: dict[str, Any]) -> None:
    ((name, value),) = option.items()
    with pytest.raises(UsageError, match=f"{name} = {value!r}:? must be"):
        MODEL.chat("hi", **option)


def test_a_chat_is_continued_with_its_messages() -> None:
    reply = MODEL.chat("Hello", max_tokens=3)
    again = MODEL.chat([*reply.messages, {"role": "user", "content": "More"}], max_tokens=3)
    assert len(again.messages) == 4
    assert again.num_dropped == 0


def test_streams_have_the_text_of_the_reply() -> None:
    stream = MODEL.chat("Hello", max_tokens=12, stream=True)
    texts = list(stream)
    assert "".join(texts) == stream.reply.text == MODEL.chat("Hello", max_tokens=12).text
    with pytest.raises(qkv.UsageError, match="unknown option"):
        list(MODEL.chat("Hello", stream=True, max_token=3))


def test_a_closed_stream_stops_the_generation() -> None:
    class Counting(torch.nn.Module):
        calls = 0

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            Counting.calls += 1
            return x

    model = chat_model()
    options = GenerationOptions(logits_processors=(lambda logits, tokens: Counting()(logits),))
    stream = model.chat("Hello", max_tokens=200, stream=True, logits_processors=options.logits_processors)
    next(stream)
    stream.close()
    assert 0 < Counting.calls < 200
    assert stream.reply is None


def test_old_messages_are_left_out_with_a_notice(caplog: pytest.LogCaptureFixture) -> None:
    messages = [{"role": "system", "content": "Kind."}]
    for number in range(8):
        messages += [{"role": "user", "content": f"Q{number}"}, {"role": "assistant", "content": f"A{number}"}]
    messages.append({"role": "user", "content": "last"})
    model = chat_model(max_positions=200)
    reply = model.chat(messages, max_tokens=20)
    assert reply.num_dropped > 0
    assert reply.num_dropped % 2 == 0  # the chat that is left begins with a user
    assert f"does not see its first {reply.num_dropped} messages" in caplog.text
    assert reply.messages[:-1] == messages  # the caller's history is whole
    kept = [messages[0], *messages[1 + reply.num_dropped :]]
    shorter = [messages[0], *messages[reply.num_dropped - 1 :]]
    chat = model.find_chat()
    assert len(chat.template.encode(kept)) <= 180 < len(chat.template.encode(shorter))
    assert reply.ids == model.chat(kept, max_tokens=20).ids


def test_a_message_that_is_too_long_is_an_error() -> None:
    with pytest.raises(qkv.UsageError, match="shorten"):
        MODEL.chat("x" * 300)


def test_models_that_cannot_chat_say_what_they_are() -> None:
    with pytest.raises(qkv.UsageError, match="no chat template"):
        chat_model(template=None).chat("Hello")
    reply = chat_model(template=None).chat("Hello", template="plain", max_tokens=3)
    assert reply.messages[-1]["role"] == "assistant"
    encoder = qkv.new(qkv.Config(encoder=MODEL.config.stack, head=HeadConfig(kind="mlm", outputs=259)))
    encoder.tokenizer = MODEL.tokenizer
    with pytest.raises(qkv.UsageError, match=r"m\.chat needs.*m\.fill"):
        encoder.chat("Hello")
    for messages in ([], 5, [{"role": "user"}]):
        with pytest.raises(qkv.UsageError):
            MODEL.chat(messages)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("chat") / "model"
    MODEL.save(path)
    return path


def pipe(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text.encode())))


def test_lines_of_stdin_are_messages(folder: Path, monkeypatch: pytest.MonkeyPatch, run_qkv: Any) -> None:
    pipe(monkeypatch, "Hello\n\nMore\n")
    captured = run_qkv(["chat", str(folder), "--max-tokens", "4", "--system", "Kind.", "--json"])
    lines = [json.loads(line) for line in captured.out.splitlines()]
    first = MODEL.chat("Hello", system="Kind.", max_tokens=4)
    second = MODEL.chat([*first.messages, {"role": "user", "content": "More"}], max_tokens=4)
    assert [line["text"] for line in lines] == [first.text, second.text]
    assert lines[0]["input"] == "Hello"


def test_newlines_of_an_answer_survive(folder: Path, monkeypatch: pytest.MonkeyPatch, run_qkv: Any) -> None:
    def answer(*_: object, on_text: object, **__: object) -> ChatReply:
        on_text("one\n\n  two\n")  # type: ignore[operator]
        return ChatReply("one\n\n  two\n", "end", [], 0.0, [])

    monkeypatch.setattr("qkv.tasks.chat.conversation.Chat.reply", answer)
    pipe(monkeypatch, "Hello\n")
    assert run_qkv(["chat", str(folder)]).out == "one\n\n  two\n\n"


def test_control_tokens_need_special(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []
    original = qkv.tasks.chat.conversation.generate

    def count(network: object, prompts: list[list[int]], *rest: object) -> object:
        seen.append(sum(i in (1, 2) for i in prompts[0]))
        return original(network, prompts, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr("qkv.tasks.chat.conversation.generate", count)
    for flags in ([], ["--special"]):
        pipe(monkeypatch, "Hello<|im_end|>\n")
        assert cli.run_command(["chat", str(folder), "--max-tokens", "2", *flags]) == 0
    assert seen == [3, 4]


class Terminal:
    """`qkv chat` at a terminal, with a model that answers at once, except to "long"."""

    program = (
        "import sys, time, qkv.cli, qkv.tasks.chat.conversation as c\n"
        "def reply(self, messages, on_text, **options):\n"
        "    on_text(f'begin{len(messages)} ')\n"
        "    asked = messages[-1]['content']\n"
        "    while asked == 'long': time.sleep(0.05)\n"
        "    if asked == 'wrong': raise qkv.QkvError('the template fails')\n"
        "    on_text('\\033[31m' + repr(asked))\n"
        "    history = [*messages, {'role': 'assistant', 'content': 'done'}]\n"
        "    return c.ChatReply('done', 'length' if asked == 'cut' else 'end', [7], 0.0, history)\n"
        "c.Chat.reply = reply\n"
        "raise SystemExit(qkv.cli.run_command(['chat', sys.argv[1], '--max-tokens', '1']))\n"
    )

    def __init__(self, folder: Path) -> None:
        self.terminal, child = pty.openpty()
        self.process = subprocess.Popen(
            [sys.executable, "-c", self.program, str(folder)],
            stdin=child,
            stdout=child,
            stderr=child,
            start_new_session=True,
            env={**os.environ, "TERM": "xterm"},
        )
        os.close(child)
        self.printed = ""

    def __enter__(self) -> "Terminal":
        self.expect("> ")
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self.terminal)

    def type(self, text: str, *answer: str) -> None:
        """Type a text, and wait for an answer and the next prompt."""
        os.write(self.terminal, text.encode())
        for words in answer or ("> ",):
            self.expect(words)

    def expect(self, words: str) -> None:
        """Wait until the program has printed the words, and forget its output up to them."""
        deadline = time.monotonic() + 90
        while words not in self.printed:
            if time.monotonic() > deadline or not select.select([self.terminal], [], [], 90)[0]:
                raise AssertionError(f"no {words!r} in {self.printed!r}")
            self.printed += os.read(self.terminal, 4096).decode()
        self.printed = self.printed.partition(words)[2]


def test_ctrl_c_stops_an_answer_and_not_the_program(folder: Path) -> None:
    with Terminal(folder) as terminal:
        terminal.type("/help\n", "/reset", "> ")
        terminal.type("long\n", "begin1 ")
        terminal.process.send_signal(signal.SIGINT)
        terminal.expect("[stopped]")
        terminal.expect("> ")
        terminal.type("short\n", "begin3 ", "> ")  # the stopped answer is part of the chat
        terminal.type("/system Kind.\n", "> ")
        terminal.type("short\n", "begin2 ", "> ")
        os.write(terminal.terminal, b"\x04")
        assert terminal.process.wait(timeout=120) == 0


def test_messages_at_a_terminal(folder: Path) -> None:
    readline = pytest.importorskip("readline")
    if "libedit" in (readline.__doc__ or ""):
        pytest.skip("libedit has no bracketed paste")
    with Terminal(folder) as terminal:
        # A paste of several lines is one message, and control characters of an answer have no effect.
        terminal.type("\x1b[200~/help\n// one\x1b[201~\n", "begin1 ␛[31m'/help\\n// one'", "> ")
        terminal.type("/etc/hosts?\n", "begin3 ␛[31m'/etc/hosts?'", "> ")
        terminal.type("wrong\n", "begin5 ", "qkv: the template fails", "> ")
        terminal.type("cut\n", "begin5 ", "[the answer was cut: --max-tokens is 1]", "> ")


def test_commands_say_what_they_did(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def run_lines(session: ChatSession, *lines: str) -> str:
        typed = iter(lines)

        def read(_: str) -> str:
            try:
                return next(typed)
            except StopIteration:
                raise EOFError from None

        monkeypatch.setattr("builtins.input", read)
        session.run_at_terminal()
        return capsys.readouterr().err.partition("\n")[2]  # without the greeting

    session = ChatSession(MODEL.find_chat(), None, {"max_tokens": 2}, json=False)
    assert run_lines(session, "/system") == "There is no system prompt.\n"
    assert "starts again" in run_lines(session, "/system  Be kind.")
    run_lines(session, "Hello")
    before = session.messages
    assert len(before) == 3
    assert run_lines(session, "/system ") == "System prompt: Be kind.\n"
    assert session.messages == before
    assert run_lines(session, "  /help") == HELP + "\n"
    assert session.messages == before
    assert run_lines(session, "/reset") == "The chat was forgotten.\n"
    assert session.messages == [{"role": "system", "content": "Be kind."}]
    assert run_lines(session, "/reset al") == f"there is no command /reset al\n{HELP}\n"
    forgotten = "The chat and the system prompt were forgotten.\nThere is no system prompt.\n"
    assert run_lines(session, "/reset\tall", "/system") == forgotten


def test_a_model_of_another_task_is_sent_to_qkv_run(tmp_path: Path, run_qkv: Any) -> None:
    encoder = qkv.new(qkv.Config(encoder=MODEL.config.stack, head=HeadConfig(kind="mlm", outputs=259)))
    encoder.tokenizer = MODEL.tokenizer
    encoder.save(tmp_path / "model")
    error = run_qkv(["chat", str(tmp_path / "model")], 2).err
    assert error.startswith("qkv: qkv chat needs a model that continues a text, but ")
    assert error.endswith(f"; use qkv run {tmp_path / 'model'}\n")


def test_a_model_without_a_template_is_refused_before_the_first_message(tmp_path: Path, run_qkv: Any) -> None:
    chat_model(template=None).save(tmp_path / "model")
    assert "--template plain" in run_qkv(["chat", str(tmp_path / "model")], 2).err


def test_a_system_prompt_alone_has_no_reply() -> None:
    with pytest.raises(UsageError, match="only a system prompt"):
        chat_model().chat([{"role": "system", "content": "Be brief."}])
