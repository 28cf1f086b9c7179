"""The wheel works where the repository is not: installed into an empty environment, called from an empty folder."""

import json
import os
import subprocess
import sys
import tomllib
import urllib.request
import venv
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parents[2]
SMALL = ["train.steps=5", "data.epoch_examples=600", "train.eval_examples=4"]


@pytest.fixture(scope="module")
def reader(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An empty folder beside an environment with the wheel. torch and the others come from this environment."""
    pytest.importorskip("setuptools", reason="builds the wheel; pip install setuptools")
    pytest.importorskip("pip", reason="installs the wheel")
    if not (ROOT / ".git").exists():
        pytest.skip("packs the files that git tracks, and this folder is not a repository")
    folder = tmp_path_factory.mktemp("wheel")
    subprocess.run([sys.executable, ROOT / "release/dist.py", "--out", folder / "dist"], check=True)
    venv.create(folder / "venv", with_pip=False)
    (wheel,) = (folder / "dist").glob("*.whl")
    pip = [sys.executable, "-m", "pip", "--python", python(folder), "install", "--quiet", "--no-deps", "--no-index"]
    subprocess.run([*pip, wheel], check=True, env=clean_environment())
    (site,) = (folder / "venv/lib").glob("python*/site-packages")
    (site / "others.pth").write_text(f"{Path(torch.__file__).parents[1]}\n")
    (folder / "work").mkdir()
    return folder


def python(folder: Path) -> str:
    return str(folder / "venv/bin/python")


def clean_environment() -> dict[str, str]:
    """The variables of this process, without the path of the repository."""
    return {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTHONHOME")}


def qkv(folder: Path, *arguments: str) -> str:
    process = subprocess.run(
        [folder / "venv/bin/qkv", *arguments],
        cwd=folder / "work", env=clean_environment(), capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert process.returncode == 0, process.stdout + process.stderr
    return process.stdout


def test_only_the_wheel_provides_qkv(reader: Path) -> None:
    code = "import qkv, qkv_lab, qkv_bench; print(qkv.__file__, qkv_lab.__file__, qkv_bench.__file__)"
    shown = subprocess.run(
        [python(reader), "-c", code], cwd=reader / "work", env=clean_environment(), capture_output=True, text=True
    ).stdout.split()
    assert len(shown) == 3
    assert all(path.startswith(str(reader / "venv")) for path in shown)


def test_help_and_versions(reader: Path) -> None:
    shown = qkv(reader, "--help")
    assert all(f"\u2502 {name} " in shown for name in ("train", "bench", "lab"))
    versions = dict(line.split(maxsplit=1) for line in qkv(reader, "--version", "--verbose").splitlines())
    assert versions["torch"] == torch.__version__
    assert {"python", "system", "CUDA", "tokenizers", "pyarrow"} <= versions.keys()


def test_the_model_in_the_box_translates(reader: Path) -> None:
    assert qkv(reader, "run", "en-fr", "The cat chased the mouse.").strip() == "Le chat a poursuivi la souris."


def test_a_model_is_trained_looked_at_and_served(reader: Path) -> None:
    assert "runs/dates: 5 steps" in qkv(reader, "train", "dates", *SMALL)
    qkv(reader, "look", "runs/dates", "le 14 juillet 1989")
    assert (reader / "work/look.html").stat().st_size > 10_000
    for url in serve(reader):
        body = json.dumps({"texts": ["le 14 juillet 1989"]}).encode()
        request = urllib.request.Request(f"{url}/translate", body, {"content-type": "application/json"})
        with urllib.request.urlopen(request, timeout=60) as response:
            assert response.status == 200
            json.load(response)


def serve(folder: Path) -> Iterator[str]:
    """The URL of a server on a free port, which runs until the loop ends."""
    command = [folder / "venv/bin/qkv", "serve", "runs/dates", "--port", "0", "--json"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL, "text": True}
    with subprocess.Popen(command, cwd=folder / "work", env=clean_environment(), **pipes) as process:
        try:
            yield next(line.split(chr(34))[3] for line in process.stdout if "http:" in line)
        finally:
            process.terminate()


def test_all_files_state_the_same_version() -> None:
    from qkv import __version__

    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    citation = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert project["version"] == __version__
    assert f"\nversion: {__version__}\n" in citation
