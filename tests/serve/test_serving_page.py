"""The examples of docs/serving.md run, and the page lists every limit."""

import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest
from chat_models import TOOL_TEMPLATE, chat_model
from serving import served
from task_models import seq2seq

from qkv import cli
from qkv.serve.server import name_models
from qkv.serve.settings import ServeSettings

PAGE = (Path(__file__).parents[2] / "docs" / "serving.md").read_text(encoding="utf-8")


def test_the_examples_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"```(sh|python)\n(.*?)```", PAGE, re.DOTALL)
    start, *others = blocks
    models = {"runs/dates": seq2seq(), "models/chat": chat_model(1024, TOOL_TEMPLATE)}
    names = name_models(shlex.split(start[1])[2:])
    seen: dict[str, object] = {}
    with served({name: models[path] for name, path in names.items()}) as (url, _):
        for language, text in others:
            text = text.replace("http://127.0.0.1:8000", url)
            if language == "python":
                exec(compile(text, "serving.md", "exec"), seen)
                continue
            for line in text.strip().splitlines():
                words = shlex.split(line)
                if words[0] == "qkv":
                    assert cli.run_command(words[1:]) == 0
                elif shutil.which("curl") is not None:
                    answer = subprocess.run([*words, "--fail"], capture_output=True, text=True, check=True).stdout
                    assert answer.startswith("{")


SECONDS = (
    "body_seconds",
    "constraint_seconds",
    "drain_seconds",
    "header_seconds",
    "request_seconds",
    "write_seconds",
)


def test_the_page_lists_every_limit() -> None:
    rows = dict(re.findall(r"^\| `--([a-z-]+)` \| ([0-9,]+) \|", PAGE, re.MULTILINE))
    limits = {
        name: value
        for name, value in vars(ServeSettings()).items()
        if name.startswith(("max_", "min_")) or name in SECONDS
    }
    limits = {name: value for name, value in limits.items() if name not in ("max_sequences", "max_chunks_per_second")}
    assert {name.replace("-", "_"): float(value.replace(",", "")) for name, value in rows.items()} == limits
