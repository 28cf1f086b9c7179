"""The page of `qkv look` for 12 layers, 12 heads and 128 tokens: its size, and the time to make and to open it.

    python bench/look.py

It needs playwright and chromium. The models have random weights with sharp attention, whose patterns compress worse
than those of a trained model. A page is open when all of its heads are drawn, by the browser's own clock.
"""

import shutil
import statistics
import tempfile
import time
from pathlib import Path

import torch
from playwright.sync_api import Browser, sync_playwright

import qkv

NUM_TOKENS = 128
NUM_OPENINGS = 5
WHEN_DRAWN = """() => new Promise((resolve) => {
    const check = () => {
        const canvases = [...document.querySelectorAll("button.head canvas")];
        const isDrawn = canvases.length > 0 && canvases.every((canvas) => canvas.width < 300);
        isDrawn ? resolve(performance.now()) : requestAnimationFrame(check);
    };
    check();
})"""  # 300 is the width of a canvas before anything is drawn


def make_model(preset: str) -> qkv.Model:
    """A model of a preset, with larger weights of queries and keys."""
    model = qkv.new(preset)
    with torch.no_grad():
        for name, parameter in model.network.named_parameters():
            if name.endswith("qkv.weight"):
                parameter.mul_(4)
    return model


def time_opening(browser: Browser, path: Path) -> float:
    """The seconds until all heads are drawn."""
    page = browser.new_page()
    page.goto(path.as_uri(), wait_until="commit")
    page.wait_for_selector("#look[data-ready]", state="attached")
    milliseconds: float = page.evaluate(WHEN_DRAWN)
    page.close()
    return milliseconds / 1e3


def main() -> None:
    """Print one line for each preset."""
    ids = torch.randint(0, 20_000, (NUM_TOKENS,), generator=torch.Generator().manual_seed(0)).tolist()
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        for preset in ("bert-base", "gpt2"):
            model, path = make_model(preset), Path(folder) / f"{preset}.html"
            start = time.perf_counter()
            model.look(ids).save(path)
            made = time.perf_counter() - start
            openings = [time_opening(browser, path) for _ in range(NUM_OPENINGS)]
            print(
                f"{preset:10} {path.stat().st_size / 1e6:.2f} MB, made in {made:.1f} s, "
                f"opened in {statistics.median(openings):.2f} s ({min(openings):.2f} … {max(openings):.2f})"
            )
        browser.close()


if __name__ == "__main__":
    main()
