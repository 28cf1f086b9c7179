"""`qkv studio` in a process of its own: it announces its address, serves the page, and ends on Ctrl-C."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import httpx
import pytest
from look_models import make_model

from qkv.cli import run_command
from qkv.inside import SparseAutoencoder
from qkv.inside.autoencoder.model import AutoencoderConfig


def test_the_studio_starts_and_stops(tmp_path: Path) -> None:
    make_model("decoder").save(tmp_path / "small")
    (tmp_path / "lines.txt").write_text("le chat\n\n14 mai 1989\n")
    autoencoder = SparseAutoencoder(AutoencoderConfig(width=16, features=8, k=2, site="decoder.0.resid_post"))
    autoencoder.save(tmp_path / "features.safetensors")
    options = [
        "--autoencoder",
        "features.safetensors",
        "--examples",
        "lines.txt",
        "--no-browser",
        "--port",
        "0",
        "--json",
    ]
    command = [sys.executable, "-m", "qkv", "studio", "small", *options]
    process = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=os.environ)
    assert process.stdout is not None
    try:
        started = json.loads(b"".join(iter(process.stdout.readline, b"}\n")) + b"}")
        assert started["models"] == ["small"]
        assert "qkv studio" in httpx.get(started["url"]).text
        described = httpx.get(f"{started['url']}/studio/api/models/small").json()
        assert described["examples"] == ["le chat", "14 mai 1989"]
        assert described["autoencoders"] == ["features"]
        assert httpx.get(f"{started['url']}/studio/api/runs").json() == {"runs": []}
    finally:
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=30)
    assert process.returncode == 0, errors.decode()


def test_a_missing_folder_of_runs_is_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(["studio", str(tmp_path), "--runs", str(tmp_path / "no")]) == 2
    assert "there is no such folder" in capsys.readouterr().err
