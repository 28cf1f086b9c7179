"""Debian's chromium, driven by playwright, and axe-core. Importing this file skips a test if there is no browser."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.resources import files
from typing import Any

import pytest

playwright = pytest.importorskip("playwright.sync_api", reason="the playwright package is not installed")
CHROMIUM = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser")
if CHROMIUM is None:
    pytest.skip("no chromium was found; install it or set CHROMIUM", allow_module_level=True)


@contextmanager
def open_browser() -> Iterator[Any]:
    """A browser without a window."""
    with playwright.sync_playwright() as started:
        running = started.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"])
        yield running
        running.close()


def find_axe_errors(page: Any, part: str = "body", unfold: bool = True) -> list[tuple[str, str, list[str]]]:
    """What axe finds in a part of a page with everything unfolded: the name, a sentence, and the first elements."""
    axe = pytest.importorskip("axe_playwright_python", reason="the axe-playwright-python package is not installed")
    if unfold:
        for summary in page.query_selector_all(f"{part} details:not([open]) > summary"):
            summary.click()
        is_unfolded = "() => [...document.querySelectorAll('details')].every((one) => one.children.length > 1)"
        page.wait_for_function(is_unfolded)
    page.evaluate(files(axe).joinpath("axe.min.js").read_text(encoding="utf-8"))
    found = page.evaluate(
        "(part) => axe.run(part, {resultTypes: ['violations']}).then((result) => result.violations)", part
    )
    return [(one["id"], one["help"], [node["html"][:200] for node in one["nodes"][:3]]) for one in found]
