"""The pages in docs/lab are those that the committed results give, and their commands run."""

import re
import shutil
from pathlib import Path

import pytest

from qkv import cli
from qkv.errors import QkvError
from qkv_lab.docs_pages import example_code, write_pages
from qkv_lab.registry import all_claims

PAGES = Path(__file__).parents[2] / "docs" / "lab"


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pages")
    shutil.copytree(PAGES / "results", folder / "results")
    write_pages(folder)
    return folder


def pages_and_pictures(folder: Path) -> list[Path]:
    return sorted(path.relative_to(folder) for pattern in ("*.md", "pictures/*.svg") for path in folder.glob(pattern))


def test_the_pages_and_pictures_follow_from_the_results(written: Path) -> None:
    names = pages_and_pictures(written)
    assert names == pages_and_pictures(PAGES)
    for name in names:
        assert (written / name).read_text() == (PAGES / name).read_text(), f"{name}: run qkv lab --book docs/lab"


def test_every_python_block_is_the_example_of_a_claim(written: Path) -> None:
    """`test_claims.py` runs every example."""
    text = "".join(page.read_text() for page in written.glob("*.md"))
    blocks = set(re.findall(r"```python\n(.*?)```", text, re.DOTALL))
    assert blocks == {example_code(claim.example) for claim in all_claims().values()}


def test_the_commands_of_the_first_page_run(written: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    commands = re.findall(r"^qkv (.*?)(?: #.*)?$", (written / "README.md").read_text(), re.MULTILINE)
    assert commands
    for command in commands:
        assert cli.run_command([*command.split(), "--size", "mini"]) == 0


def test_pages_need_the_results_of_every_claim(tmp_path: Path) -> None:
    with pytest.raises(QkvError, match="run it first: qkv lab"):
        write_pages(tmp_path)
