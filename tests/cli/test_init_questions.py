"""`qkv init` without arguments asks; the words that people use for tasks; shell completion."""

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from qkv.tasks.starters.starter import COMMON_WORDS, find_task_name
from qkv.tasks.table import find_starters


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    rows = "".join(f"a {kind} book {i},{kind}\n" for i in range(30) for kind in ("fine", "bad"))
    (tmp_path / "reviews.csv").write_text("text,label\n" + rows)
    return tmp_path


def test_init_asks_for_the_task_and_the_files(files: Path, monkeypatch: pytest.MonkeyPatch, run_qkv: Any) -> None:
    answers = ["sentimet", "sentiment", "nothere.csv", "reviews.csv"]
    monkeypatch.setattr("sys.stdin.isatty", lambda: True)
    monkeypatch.setattr("builtins.input", lambda question: answers.pop(0))
    shown = run_qkv(["init"]).out
    assert not answers
    assert "did you mean 'sentiment'" in shown
    assert "nothere.csv: no such file" in shown
    assert 'kind = "classification"' in shown
    assert (files / "classify.toml").read_text() in shown


def test_a_number_of_the_menu_chooses_a_task(files: Path, monkeypatch: pytest.MonkeyPatch, run_qkv: Any) -> None:
    answers = [str([*find_starters()].index("classify") + 1), "reviews.csv"]
    monkeypatch.setattr("sys.stdin.isatty", lambda: True)
    monkeypatch.setattr("builtins.input", lambda question: answers.pop(0))
    assert "wrote classify.toml" in run_qkv(["init"]).out


def test_without_a_terminal_init_does_not_ask(monkeypatch: pytest.MonkeyPatch, run_qkv: Any) -> None:
    monkeypatch.setattr("sys.stdin.isatty", lambda: False)
    assert "qkv init TASK FILE; tasks: translate" in run_qkv(["init"], 2).err


def test_common_words_name_tasks(files: Path, run_qkv: Any) -> None:
    run_qkv(["init", "intent", "reviews.csv"])
    assert 'kind = "classification"' in (files / "intent.toml").read_text()
    words = [word for listed in COMMON_WORDS.values() for word in listed.split()]
    assert len(words) == len({*words} - {*find_starters()})
    for word, task in (("ner", "tag"), ("chat", "language"), ("qa", "answer"), ("Summarize", "summarise")):
        assert find_task_name(word, find_starters()) == task


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_has_every_command_and_its_options(shell: str, run_qkv: Any) -> None:
    script = run_qkv(["completion", shell]).out
    assert all(word in script for word in ("verify-resume", "dry-run", "length-penalty", "lab"))
    if shutil.which(shell):
        subprocess.run([shell, "-n"], input=script, text=True, check=True)
    assert json.loads(run_qkv(["completion", shell, "--json"]).out)["script"] == script.removesuffix("\n")


def test_bash_completes(tmp_path: Path, run_qkv: Any) -> None:
    script = run_qkv(["completion", "bash"]).out
    asked = "COMP_WORDS=(qkv verify); COMP_CWORD=1; $(complete -p qkv | sed 's/.*-F \\([^ ]*\\) .*/\\1/')"
    asked += "; echo ${COMPREPLY[@]}"
    shown = subprocess.run(["bash", "-c", f"{script}\n{asked}"], capture_output=True, text=True)
    assert shown.stdout.strip() == "verify-resume", shown.stderr
