"""The site: it is built without a network, its links lead somewhere, and a browser finds, shows and reads its pages."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("material", reason='builds the site; pip install "qkv[docs]"')
import build_site

ROOT = Path(__file__).parents[2]
READ = ("index", "docs/lab/2-families")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, ROOT / "docs/build_site.py", "--out", folder]
    built = subprocess.run(command, capture_output=True, text=True)
    assert built.returncode == 0, built.stdout + built.stderr
    return folder


def test_every_page_is_there_and_loads_nothing_from_the_network(site: Path) -> None:
    pages = list((ROOT / "docs").rglob("*.md"))
    assert len([*(site / "docs").rglob("*.html")]) == len(pages)
    for page in site.rglob("*.html"):
        text = page.read_text(encoding="utf-8")
        assert not re.search(r'<(?:script|img|link)[^>]*(?:src|href)="https?:', text), page


def test_the_reference_has_every_key_command_name_and_error(site: Path) -> None:
    from qkv import __all__
    from qkv.cli import COMMANDS
    from qkv.train.recipe.table import SECTION_KEYS

    pages = {name: (site / f"reference/{name}.html").read_text() for name in ("recipe", "commands", "python", "errors")}
    for section, keys in SECTION_KEYS.items():
        named = [f"<code>{key}</code>" in pages["recipe"] or f"[{section}.{key}]" in pages["recipe"] for key in keys]
        assert all(named), section
    assert all(f'id="qkv-{command}"' in pages["commands"] for command in (*COMMANDS, "lab", "bench"))
    assert all(f'id="{name}"' in pages["python"] for name in __all__ if not name.startswith("__"))
    assert all(name in pages["errors"] for name in ("QkvError", "UsageError", "InvalidValue"))


def test_a_broken_link_is_an_error(tmp_path: Path) -> None:
    """Negative control of the check of links and anchors."""
    config = (ROOT / "docs/mkdocs.yml").read_text().partition("\nnav:")[0]
    (tmp_path / "mkdocs.yml").write_text(config)
    (tmp_path / "pages").mkdir()
    for name in build_site.ASSETS:
        shutil.copyfile(ROOT / "docs" / name, tmp_path / "pages" / name)
    page = tmp_path / "pages/index.md"
    page.write_text("# A title\n\n[there](#a-title)\n")
    build_site.run_mkdocs(tmp_path, tmp_path / "out")
    page.write_text("# A title\n\n[there](#a-tilte)\n")
    with pytest.raises(SystemExit, match="a-tilte"):
        build_site.run_mkdocs(tmp_path, tmp_path / "out")
    with pytest.raises(SystemExit, match=r"docs/training.md: nothere.md does not exist"):
        build_site.unlink("[there](nothere.md)", Path("docs/training.md"), set())


def test_a_browser_searches_without_a_server_and_axe_finds_no_error(site: Path) -> None:
    from browsing import find_axe_errors, open_browser

    with open_browser() as browser:
        for scheme, width in (("light", 1280), ("dark", 1280), ("light", 360)):
            page = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)
            for name in READ:
                page.goto(f"file://{site}/{name}.html")
                page.wait_for_timeout(300)
                assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), (name, width)
                if width == 1280:
                    assert find_axe_errors(page, unfold=False) == [], (name, scheme)
        page.keyboard.press("/")
        page.wait_for_timeout(300)
        page.keyboard.type("gradient checkpointing")
        page.wait_for_selector(".md-search-result__item")
