"""Texts that are too long: every task reports what it cuts or reads in windows."""

import logging
from typing import Any

import pytest
from task_models import encoder, parts_of, records

import qkv
from qkv import cli
from qkv.errors import UsageError
from qkv.tasks.evaluate import evaluate

LONG = "the lazy dog runs over the fox " * 30
HEADS = {
    "classify": qkv.HeadConfig(kind="classify", labels=("bad", "good"), dense="tanh", bias=True),
    "embed": qkv.HeadConfig(kind="embed"),
    "tag": qkv.HeadConfig(kind="tag", labels=("O", "X")),
    "answer": qkv.HeadConfig(kind="span", outputs=2),
}


@pytest.mark.parametrize("task", ["classify", "embed"])
def test_texts_are_refused_or_cut_with_a_warning(task: str, caplog: pytest.LogCaptureFixture) -> None:
    made = encoder(HEADS[task], max_positions=16)
    with pytest.raises(UsageError, match=r"set too_long to .*truncate"):
        made.run(["fox", LONG])
    with caplog.at_level(logging.WARNING, "qkv"):
        assert len(made.run(["fox", LONG], too_long="truncate")) == 2
    assert caplog.messages == ["1 of 2 texts were truncated to the 16 tokens that fit"]


def test_an_embedding_is_refused_or_cut_but_not_split() -> None:
    made = encoder(HEADS["embed"], max_positions=16)
    with pytest.raises(UsageError, match=r"too_long = 'split' must be one of 'error', 'truncate'"):
        made.run(["fox"], too_long="split")
    with pytest.raises(UsageError, match=r"too_long = 'trunc' must be .*did you mean 'truncate'"):
        made.embed(["fox", LONG], too_long="trunc")


def test_an_evaluation_reports_windows_and_cut_questions() -> None:
    words = LONG.split()
    tagger, reader = (parts_of(encoder(HEADS[task], max_positions=16)) for task in ("tag", "answer"))
    found = evaluate(*tagger, records([{"tokens": words, "tags": ["O"] * len(words)}]))
    assert "1 texts were read in windows of 16 tokens" in found.notes
    asked = {"question": LONG, "context": LONG, "answers": ["fox"], "starts": [LONG.index("fox")]}
    assert evaluate(*reader, records([asked])).notes == (
        "1 passages were read in windows of 16 tokens",
        "1 questions were truncated to 4 tokens",
    )
    short = {"question": "a", "context": "fox", "answers": ["fox"], "starts": [0]}
    assert evaluate(*reader, records([short])).notes == ()


def test_the_command_line_cuts_texts_to_embed(tmp_path, run_qkv: Any) -> None:
    encoder(HEADS["embed"], max_positions=16).save(tmp_path / "made")
    assert "truncate" in run_qkv(["run", str(tmp_path / "made"), LONG], 2).err
    assert cli.run_command(["run", str(tmp_path / "made"), LONG, "--too-long", "truncate"]) == 0
