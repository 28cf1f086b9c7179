"""NO_COLOR, exit codes of misspelt models, and `help(qkv.train)`."""

import inspect
import pydoc
from typing import Any

import pytest
from terminals import output_on_a_terminal

import qkv


@pytest.mark.parametrize("arguments", [["--help"], ["info", "bert-tiny"]], ids=["help", "info"])
def test_no_color_leaves_no_escapes(arguments: list[str]) -> None:
    assert b"\x1b" not in output_on_a_terminal(*arguments, NO_COLOR="1")


def test_a_terminal_without_no_color_has_styles() -> None:
    """A control: the test above would see escapes."""
    assert b"\x1b" in output_on_a_terminal("info", "bert-tiny", NO_COLOR="")


@pytest.mark.parametrize("command", ["run", "info", "bench"])
def test_a_model_that_does_not_exist_is_a_wrong_call_in_every_command(command: str, run_qkv: Any) -> None:
    assert "nope: no such folder" in run_qkv([command, "nope"], 2).err


def test_help_of_train_describes_the_function() -> None:
    text = pydoc.plain(pydoc.render_doc(qkv.train))
    assert "qkv.train(recipe: " in text
    assert "Train a model from a recipe file" in text
    assert list(inspect.signature(qkv.train).parameters) == ["recipe", "watcher", "overrides"]
