"""Text out of a model: streams that never cut a character, stop texts across tokens, lines in and lines out."""

import io
import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

import qkv
from qkv import cli
from qkv.blocks import HeadConfig, StackConfig
from qkv.cli.input_lines import InputLines, RunNotes
from qkv.errors import UsageError
from qkv.models import Config, build
from qkv.text import Tokenizer

PROMPTS = ["grüße 🙂", "a", "Ελλάδα und 中文"]


@pytest.fixture(scope="module")
def model() -> qkv.Model:
    """A random decoder over bytes: its texts are full of half characters, which is the point."""
    tokenizer = Tokenizer.train("byte", iter([]), vocab_size=260, special_tokens=["pad", "eos"])
    stack = StackConfig(
        vocab_size=tokenizer.vocab_size, width=32, layers=1, heads=2, ffn_width=64, position="rotary", init_std=0.4
    )
    head = HeadConfig(kind="lm", outputs=tokenizer.vocab_size)
    config = Config(
        decoder=stack,
        head=head,
        pad_token_id=tokenizer.special_tokens.pad,
        eos_token_ids=(tokenizer.special_tokens.eos,),
    )
    torch.manual_seed(4)
    return qkv.Model(config, build(config).eval(), tokenizer)


def test_the_stream_is_the_text(model: qkv.Model) -> None:
    """Trap 27: pieces joined are the whole text, and no piece is half a character."""
    pieces: dict[int, list[str]] = {}
    results = model.generate(
        PROMPTS,
        max_tokens=60,
        temperature=2.0,
        seed=3,
        on_text=lambda row, piece: pieces.setdefault(row, []).append(piece),
    )
    for row, result in enumerate(results):
        assert "".join(pieces[row]) == result.text == model.tokenizer.decode(result.ids)
        assert len(pieces[row]) > 1


def test_a_stop_text_that_spans_tokens_ends_the_answer(model: qkv.Model) -> None:
    whole = model.generate("a", max_tokens=60, temperature=1.5, seed=9)
    stop = whole.text[5:9]  # four characters are at least four bytes, so at least four tokens
    heard: list[str] = []
    result = model.generate(
        ["a"], max_tokens=60, temperature=1.5, seed=9, stop=stop, on_text=lambda _, p: heard.append(p)
    )[0]
    assert result.finish_reason == "stop"
    assert result.text == whole.text[: whole.text.index(stop)] == "".join(heard)


def test_a_search_that_meets_a_stop_text_gives_the_tokens_up_to_it(model: qkv.Model) -> None:
    """And what it found is handed out once, when it is sure."""
    heard: list[tuple[int, str]] = []
    whole = model.generate(["a"], max_tokens=30, beam=3)[0]
    stop = whole.text[2:5]
    cut = model.generate(["a"], max_tokens=30, beam=3, stop=stop, on_text=lambda *piece: heard.append(piece))[0]
    assert cut.finish_reason == "stop"
    assert cut.text == whole.text[: whole.text.index(stop)]
    assert cut.ids == whole.ids[: len(cut.ids)]
    assert len(cut.ids) < len(whole.ids)
    assert heard == [(0, cut.text)]


def test_a_stop_text_that_only_begins_is_handed_out_in_the_end(model: qkv.Model) -> None:
    whole = model.generate("a", max_tokens=30, temperature=1.5, seed=9)
    heard: list[str] = []
    stop = whole.text[-1] + "never said"
    model.generate(["a"], max_tokens=30, temperature=1.5, seed=9, stop=[stop], on_text=lambda _, p: heard.append(p))
    assert "".join(heard) == whole.text


def test_one_prompt_one_result_a_list_for_a_list(model: qkv.Model) -> None:
    assert model.generate("a", max_tokens=2).ids == model.generate(["a"], max_tokens=2)[0].ids
    ids = model.tokenizer.encode("a")
    assert model.generate(ids, max_tokens=2).ids == model.generate([ids], max_tokens=2)[0].ids


def test_an_unknown_option_names_the_nearest(model: qkv.Model) -> None:
    with pytest.raises(UsageError, match="top_k"):
        model.generate("a", topk=3)


def test_score_counts_the_end(model: qkv.Model) -> None:
    tokens = model.score("a", "bc")
    assert [t.id for t in tokens] == [*model.tokenizer.encode("bc"), model.config.eos_token_ids[0]]
    assert all(t.logprob < 0 for t in tokens)


@pytest.fixture(scope="module")
def folder(model: qkv.Model, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model")
    model.save(path)
    return path


def test_run_writes_a_line_for_each_line(
    folder: Path, model: qkv.Model, monkeypatch: pytest.MonkeyPatch, run_qkv: Any
) -> None:
    lines = ["three words here", "", "one", "zwei Wörter"]
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(("\n".join(lines) + "\n").encode())))
    captured = run_qkv(["run", str(folder), "--max-tokens", "5", "--batch-size", "2", "--json"])
    rows = [json.loads(line) for line in captured.out.splitlines()]
    assert [row["input"] for row in rows] == lines
    assert [row["text"] for row in rows] == [model.generate(x, max_tokens=5).text if x else "" for x in lines]


class Typed(io.TextIOWrapper):
    """A terminal at which lines are typed."""

    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("batch", [1, 2])
def test_run_answers_what_it_has_read_before_it_fails(
    folder: Path, model: qkv.Model, batch: int, monkeypatch: pytest.MonkeyPatch,
    run_qkv: Any
) -> None:  # fmt: skip
    """What was answered stays written when a later line cannot be read; notes are told of what was."""
    monkeypatch.setattr("qkv.cli.input_lines.BATCHES_PER_CHUNK", 2)
    lines = ["one", "", "two words", "three", "vier", "cinq"]
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO("\n".join(lines).encode() + b"\n\xff\n")))
    said = run_qkv(["run", str(folder), "--max-tokens", "4", "--batch-size", str(batch)], 1)
    assert "stdin, line 7: not UTF-8" in said.err
    answers = [" ".join(model.generate(x, max_tokens=4).text.splitlines()) if x else "" for x in lines]
    assert said.out.splitlines() == answers


def test_lines_at_a_terminal_are_answered_as_they_come(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    heard: list[str] = []

    class Keys(io.BytesIO):
        def __next__(self) -> bytes:
            heard.append(capsys.readouterr().out)
            return super().__next__()

    monkeypatch.setattr(sys, "stdin", Typed(Keys(b"one\ntwo\n\n")))
    assert cli.run_command(["run", str(folder), "--max-tokens", "3", "--json"]) == 0
    assert [text.count("\n") for text in heard] == [0, 1, 1, 1], "before each line, the answer to the last"


def test_a_closed_stdin_is_told_of(folder: Path, monkeypatch: pytest.MonkeyPatch, run_qkv: Any) -> None:
    monkeypatch.setattr(sys, "stdin", None)
    assert "stdin is closed" in run_qkv(["run", str(folder)], 1).err


def test_lines_of_a_file_give_a_line_each_at_a_terminal_too(
    folder: Path, monkeypatch: pytest.MonkeyPatch, run_qkv: Any
) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"one\ntwo\nthree\n")))
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    asked = ["--max-tokens", "30", "--batch-size", "1", "--temperature", "2", "--seed", "3"]
    assert run_qkv(["run", str(folder), *asked]).out.count("\n") == 3


def test_the_bar_knows_how_many_lines_a_file_has(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[int, int]] = []

    @contextmanager
    def bar(what: str) -> Iterator[Any]:
        yield lambda done, total: seen.append((done, total))

    monkeypatch.setattr("qkv.render.progress.progress_bar", bar)
    monkeypatch.setattr("qkv.cli.input_lines.BATCHES_PER_CHUNK", 1)
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"a\nb\nc\nd\ne\n")))
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    lines = InputLines((), 2)
    for some in lines:
        with lines.show_progress() as report:
            report(len(some), 99)
    assert seen == [(2, 5), (4, 5), (5, 5)]


def test_run_with_texts_prints_one_line_each(folder: Path, run_qkv: Any) -> None:
    captured = run_qkv(["run", str(folder), "a", "b", "--max-tokens", "12", "--temperature", "2", "--seed", "1"])
    assert len(captured.out.split("\n")) == 3


def test_run_says_that_a_file_was_read_as_a_text(folder: Path, tmp_path: Path, run_qkv: Any) -> None:
    file = tmp_path / "some lines.txt"
    file.write_text("a\n")
    notes = run_qkv(["run", str(folder), str(file), "no-file.txt", "--max-tokens", "2"]).err
    assert f"'{file}' is a file, but its name was used as the input text" in notes
    assert f"use qkv run MODEL < '{file}'" in notes
    assert "no-file.txt" not in notes


def test_run_takes_a_draft(folder: Path, run_qkv: Any) -> None:
    """Speculative decoding gives the same text, from a model or from the text so far."""
    call = ["run", str(folder), "a b a b", "--max-tokens", "12"]
    plain = run_qkv(call).out
    for draft in ("lookup", str(folder)):
        assert run_qkv([*call, "--draft", draft]).out == plain
    assert "--draft with --beam 2" in run_qkv([*call, "--draft", "lookup", "--beam", "2"], 2).err


def test_run_says_what_cannot_be_seen_in_its_answers(tmp_path: Path, run_qkv: Any) -> None:
    """An answer that was cut, and letters that the model never saw; a text that goes on is always cut."""
    tokenizer = Tokenizer.train("char", iter(["abcdef"]), vocab_size=20, special_tokens=["pad", "bos", "eos", "unk"])
    stack = StackConfig(vocab_size=tokenizer.vocab_size, width=16, layers=1, heads=2, ffn_width=32, position="rotary")
    head = HeadConfig(kind="lm", outputs=tokenizer.vocab_size)
    ids = {"pad_token_id": tokenizer.special_tokens.pad, "decoder_start_token_id": tokenizer.special_tokens.bos}
    torch.manual_seed(1)
    for name, config in {
        "pairs": Config(encoder=stack, decoder=stack, head=head, **ids),
        "text": Config(decoder=stack, head=head, **ids),
    }.items():
        qkv.Model(config, build(config).eval(), tokenizer).save(tmp_path / name)
    cut, unseen = "2 of 2 outputs were cut off after 3 tokens", "vocabulary; the first is 'a☃'"
    said = run_qkv(["run", str(tmp_path / "pairs"), "abc", "a☃", "--max-tokens", "3"])
    assert cut in said.err
    assert unseen in said.err
    assert len(said.out.splitlines()) == 2
    said = run_qkv(["run", str(tmp_path / "text"), "abc", "a☃", "--max-tokens", "3"])
    assert cut not in said.err
    assert unseen in said.err


def test_prompts_may_be_tensors_and_arrays(model: qkv.Model) -> None:
    rows = [[4, 5, 6], [7]]
    wanted = [result.ids for result in model.generate(rows, max_tokens=5)]
    for one in ([torch.tensor(row) for row in rows], [np.array(row) for row in rows]):
        assert [result.ids for result in model.generate(one, max_tokens=5)] == wanted
    assert model.generate([np.int64(4), np.int64(5), np.int64(6)], max_tokens=5).ids == wanted[0]
    assert model.generate(torch.tensor([4, 5, 6]), max_tokens=5, seed=np.int64(3), temperature=1.0).ids


def test_what_is_no_text_no_list_and_no_function_is_refused(model: qkv.Model) -> None:
    for call in (
        lambda: model.generate("a", stop=5),
        lambda: model.generate("a", on_text=5),
        lambda: model.generate_lines("a text"),
        lambda: model.generate_lines([1]),
        lambda: model.generate_lines(["a"], batch_size=0),
        lambda: model.score("a", 5),
        lambda: model.score(["a"], "b"),
        lambda: model.logits("abc"),
    ):
        with pytest.raises(UsageError):
            call()
    roll = model.generate("a", max_tokens=4, logits_processors=lambda logits, tokens: logits.roll(1, -1))
    assert (
        roll.ids == model.generate("a", max_tokens=4, logits_processors=[lambda logits, tokens: logits.roll(1, -1)]).ids
    )


def test_drawing_needs_a_temperature(folder: Path, run_qkv: Any) -> None:
    captured = run_qkv(["run", str(folder), "a", "--top-p", "0.5", "--seed", "1"], 2)
    assert (
        "--top-p and --seed: only used for sampling, which is off at --temperature 0; add --temperature 1"
        in captured.err
    )


def test_a_template_that_adds_the_unknown_token_makes_no_text_unknown() -> None:
    """As with tokenizers whose start, end and unknown token are one."""
    tokenizer = Tokenizer.train(
        "char", iter(["abcdef"]), vocab_size=20, special_tokens=["pad", "eos", "unk"], template="eos"
    )
    tokenizer.special_tokens = replace(tokenizer.special_tokens, unk=tokenizer.special_tokens.eos)
    loaded = SimpleNamespace(tokenizer=tokenizer, config=SimpleNamespace(family="decoder", front_ends=()))
    notes = RunNotes(loaded, 5)
    notes.add(["abc"], [])
    assert notes.messages() == []


@pytest.mark.parametrize("prompts", [5, None, [1.5], [["a"]], [None], {"a": 1}])
def test_prompts_that_are_none_are_refused(model: qkv.Model, prompts: object) -> None:
    with pytest.raises(UsageError, match="token ids"):
        model.generate(prompts)  # type: ignore[call-overload]


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["run", "no/such/model", "a"], 2, "no such folder"),
        (["run", "no/such/model", "a", "--temperature", "-1"], 2, "temperature"),  # before any model is looked for
        (["run", "MODELS", "a"], 2, "; did you mean "),
        (["run", "MODEL", "a", "--beam", "9999"], 2, "vocabulary"),
        (["run", "MODEL", "a", "--batch-size", "0"], 2, "batch"),
        (["run", "MODEL", "a", "--max-tokens", "many"], 2, "many"),
    ],
)
def test_run_says_what_is_wrong(folder: Path, arguments: list[str], code: int, said: str, run_qkv: Any) -> None:
    caught = run_qkv([word.replace("MODEL", str(folder)) for word in arguments], code)
    assert said in caught.err
    assert not caught.out
