"""`qkv serve` as a process: it refuses what is unsafe, says where it listens, and drains when it is told to stop."""

import json
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import httpx
import pytest
from task_models import decoder

from qkv import cli
from qkv.errors import UsageError
from qkv.serve import server
from qkv.serve.server import find_default, name_models


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("served")
    decoder(max_positions=1024).save(path / "runs" / "model")
    return path


def test_a_server_drains_after_sigterm(folder: Path) -> None:
    command = [sys.executable, "-m", "qkv", "serve", "runs/model", "--port", "0", "--json", "--drain-seconds", "20"]
    with subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        line = "".join(iter(process.stdout.readline, "}\n")) + "}"
        started = json.loads(line)
        assert started["models"] == ["model"]
        answers: list[httpx.Response] = []

        def ask() -> None:
            body = {"prompt": "the fox", "max_tokens": 700, "logit_bias": {"2": -100}, "seed": 1}
            answers.append(httpx.post(f"{started['url']}/v1/completions", json=body, timeout=60))

        asking = threading.Thread(target=ask)
        asking.start()
        deadline = 200
        while 'generations"} 1' not in httpx.get(f"{started['url']}/metrics").text:
            deadline -= 1
            assert deadline
        process.send_signal(signal.SIGTERM)
        asking.join()
        assert process.wait(timeout=20) == 0
        assert answers[0].status_code == 200
        assert answers[0].json()["usage"]["completion_tokens"] == 700
        with pytest.raises(httpx.ConnectError):
            httpx.get(f"{started['url']}/healthz")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["runs/model", "--host", "0.0.0.0"], "give API keys (--keys FILE), or --insecure"),
        (["runs/model", "--keys", "missing.txt"], "qkv new-key missing.txt NAME"),
        (["runs/none"], "runs/none"),
        (["runs/model", "a=runs/model", "a=runs/other"], "two models have the name 'a'"),
        (["runs/model", "--max-queue", "0"], "--max-queue 0: must be at least 1"),
        (["runs/model", "--port", "99999999"], "--port 99999999: a port is a number from 0 to 65535"),
        (["runs/model", "--port", "-1"], "--port -1: a port is a number from 0 to 65535"),
    ],
)
def test_what_cannot_be_served_is_an_error(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any, arguments: list[str], message: str
) -> None:
    monkeypatch.chdir(folder)
    assert cli.run_command(["serve", *arguments, "--log-file", "log.jsonl"]) != 0
    assert message in capsys.readouterr().err


def test_new_key_prints_a_key(tmp_path: Path, capsys: Any) -> None:
    assert cli.run_command(["new-key", str(tmp_path / "keys.txt"), "laptop"]) == 0
    assert capsys.readouterr().out.startswith("qkv-")
    assert (tmp_path / "keys.txt").read_text().startswith("laptop ")


def test_models_have_names(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert name_models(["runs/dates/", "b=x/y"]) == {"dates": "runs/dates/", "b": "x/y"}
    with pytest.raises(UsageError, match="NAME=PATH"):
        name_models(["a b"])
    monkeypatch.setattr(server, "bundled_folders", dict)
    assert find_default(folder / "runs") == str(folder / "runs" / "model")
    with pytest.raises(UsageError, match="give a model"):
        find_default(folder / "nothing")
    monkeypatch.setattr(server, "bundled_folders", lambda: {"en-fr": folder})
    assert find_default(folder / "runs") == "en-fr"


def test_idle_connections_stay_open_longer_than_clients_reuse_them() -> None:
    settings = server.ServeSettings()
    assert server.make_config(server.make_app({}, settings), settings, "127.0.0.1", 0).timeout_keep_alive > 60
