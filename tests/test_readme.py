"""Every command and every piece of Python in the README runs, in the order in which a reader would type them.

What it leads to runs after it: the pages on training and on decoding.
"""

import contextlib
import os
import re
import shlex
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import pytest

from qkv import cli
from qkv.decode import GenerationOptions
from qkv.train.recipe.schema import Recipe
from qkv.train.recipe.values import format_value

ROOT = Path(__file__).parent.parent
PAGES = ("README.md", "docs/training.md", "docs/decoding.md")


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of a reader's own, with a small data file in it."""
    folder = tmp_path_factory.mktemp("reader")
    rows = [f"a sentence with number {i}\teine Zeile mit Nummer {i}" for i in range(60)]
    (folder / "pairs.tsv").write_text("source\ttarget\n" + "\n".join(rows) + "\n", encoding="utf-8")
    return folder


def run(command: list[str], folder: Path) -> None:
    """Run a command as typed. qkv itself runs in this process, which has torch loaded already."""
    if command[0] == "qkv":
        with contextlib.chdir(folder):
            assert cli.run_command(command[1:]) == 0, shlex.join(command)
        return
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, f"{shlex.join(command)}\n{done.stdout}\n{done.stderr}"


def test_the_readme_runs_from_top_to_bottom(desk: Path) -> None:
    for page in PAGES:
        blocks = re.findall(r"```(sh|python)\n(.*?)```", (ROOT / page).read_text(encoding="utf-8"), re.DOTALL)
        assert blocks
        follow(page, blocks, desk)


def follow(page: str, blocks: list[tuple[str, str]], desk: Path) -> None:
    names: dict[str, object] = {}
    for kind, text in blocks:
        if page == "README.md":  # each of whose examples stands for itself
            names = {}
        if kind == "python":
            with contextlib.chdir(desk):
                exec(compile(text, page, "exec"), names)
            continue
        for line in text.strip().splitlines():
            words = shlex.split(line, comments=True)
            if words[0] == "make":  # running it here would run this test again: make says what it would do
                run(["make", "--dry-run", *words[1:]], ROOT)
            else:
                assert words[0] == "qkv", f"a command that this test does not know: {line}"
                run(words, desk)


def test_the_page_on_decoding_has_every_option() -> None:
    text = (ROOT / "docs/decoding.md").read_text(encoding="utf-8")
    listed = re.findall(r"^\| (`.*?) \|", text, re.MULTILINE)
    named = [name for cell in listed for name in re.findall(r"`(\w+)`", cell)]
    assert sorted(named) == sorted(field.name for field in fields(GenerationOptions))


def test_the_page_on_training_has_every_key_and_its_default() -> None:
    text = (ROOT / "docs/training.md").read_text(encoding="utf-8")
    for section in fields(Recipe)[1:]:
        table = text.split(f"### [{section.name}]")[1].split("###")[0]
        listed = dict(re.findall(r"^\| `(\w+)` \| `(.*?)` \|", table, re.MULTILINE))
        usual = getattr(Recipe(), section.name)
        known = {one.name.rstrip("_"): getattr(usual, one.name) for one in fields(usual) if one.name != "change"}
        assert listed == {name: format_value(value) if value != {} else "{}" for name, value in known.items()}


def test_quickstart_runs(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """What `make quickstart` runs after its set-up, with fewer dates and steps."""
    recipe = subprocess.run(
        ["make", "--dry-run", "--always-make", "quickstart"], cwd=ROOT, capture_output=True, text=True
    )
    lines = [shlex.split(line) for line in recipe.stdout.splitlines() if "/bin/qkv" in line]
    train, use, echo = ([Path(words[0]).name, *words[1:]] for words in lines)
    assert train == ["qkv", "train", "dates"]
    run(
        [*train, "train.steps=8", "data.epoch_examples=600", "train.eval_examples=4", f"data.cache={tmp_path}"],
        tmp_path,
    )
    capfd.readouterr()
    run(use, tmp_path)
    assert len(capfd.readouterr().out.splitlines()) == len(use) - 3  # a line for each text
    assert echo[0] == "echo"


def test_the_installed_command_answers() -> None:
    run([str(Path(sys.executable).with_name("qkv")), "--version"], ROOT)


def test_links_lead_somewhere() -> None:
    for page in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")), ROOT / "CONTRIBUTING.md"):
        for target in re.findall(r"\]\(([^)#]+)\)", page.read_text(encoding="utf-8")):
            assert target.startswith("http") or (page.parent / target).exists(), f"{page.name}: {target}"


def test_extras_that_the_readme_names_exist() -> None:
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    named = re.search(r"\(extras: (.*?)\)", (ROOT / "README.md").read_text(encoding="utf-8"), re.DOTALL)
    assert named
    for extra in re.findall(r"`(\w+)`", named[1]):
        assert re.search(rf"^{extra} = \[", project, re.MULTILINE), extra
