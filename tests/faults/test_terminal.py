"""Texts of models, files and users have no effect on a terminal: their control characters are visible."""

from pathlib import Path

import pytest
from rich.text import Text
from terminals import output_on_a_terminal

import qkv
from qkv.render.console import NoColorConsole
from qkv.text import Tokenizer

TITLE = "\x1b]0;owned\x07\x1b[2J\r\x9b31m\u202e"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that writes escape characters, in a folder with others in its name."""
    tokenizer = Tokenizer.train("char", iter(["\x1b\x07\r"]), 40, special_tokens=["pad", "eos", "unk"])
    stack = qkv.StackConfig(
        vocab_size=tokenizer.vocab_size, width=16, layers=1, heads=2, ffn_width=16, position="rotary", init_std=0.5
    )
    config = qkv.Config(decoder=stack, head=qkv.HeadConfig(kind="lm", outputs=tokenizer.vocab_size))
    model = qkv.new(config, tokenizer=tokenizer, seed=1)
    path = tmp_path_factory.mktemp("models") / "a\x1b[31mb"
    model.save(path)
    return path


@pytest.mark.parametrize("verb", ["run", "info", "missing", "option", "command", "init", "look"])
def test_no_command_prints_control_characters(verb: str, folder: Path, tmp_path: Path) -> None:
    data = tmp_path / "train.tsv"
    data.write_text("".join(f"text {i}\t{TITLE[:-1].replace(chr(13), '')}{i % 2}\n" for i in range(40)))
    arguments = {
        "run": ["run", str(folder), "\x1b", "--max-tokens", "20"],
        "info": ["info", str(folder)],
        "missing": ["run", TITLE, "text"],
        "option": ["run", str(folder), "text", f"--{TITLE}"],
        "command": [TITLE],
        "init": ["init", "classify", str(data), "--out", str(tmp_path / TITLE)],
        "look": ["look", str(folder), "\x1b\x07"],
    }[verb]
    written = output_on_a_terminal(*arguments, NO_COLOR="1").decode().replace("\r\n", "\n")
    assert written.strip()
    found = [character for character in written if not (character.isprintable() or character in "\n\t")]
    assert not found, written


def test_colours_of_the_console_stay(folder: Path) -> None:
    written = output_on_a_terminal("info", str(folder)).decode()
    assert "\x1b[1m" in written
    assert "a␛[31mb" in written


def test_a_console_that_is_no_terminal_shows_them_too(capsys: pytest.CaptureFixture[str]) -> None:
    NoColorConsole().print(Text(f"{TITLE}\nb\tc", "bold"))
    assert capsys.readouterr().out.split("\n")[1].split() == ["b", "c"]
    NoColorConsole().print(TITLE, markup=False)
    assert "\x1b" not in capsys.readouterr().out
