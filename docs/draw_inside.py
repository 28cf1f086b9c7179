"""Draw the pictures of docs/inside.md:  python docs/draw_inside.py runs/dates

It needs the model of `qkv train dates`, playwright and chromium, because the page itself draws and saves three of them.

inside-heads.svg       all heads of the model, drawn by `qkv look --out`
inside-head.svg        one head of the cross-attention
inside-alignment.svg   which letters of the source the decoder looks at
inside-search.svg      the tree of a beam search
inside-features.png    two features of a sparse autoencoder of the encoder
"""

import shutil
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

from playwright.sync_api import sync_playwright

import qkv
from qkv import inside
from qkv.data.builtin import find_dataset
from qkv.render.attention_svg import draw_attention

PICTURES = Path(__file__).parent / "pictures"
TEXT = "le 14 juillet 1989"
UNCERTAIN_TEXT = "4/5/99"  # the model hesitates, so the tree of its search has several branches

FEATURES_SITE, NUM_DATES = "encoder.1.resid_post", 20_000
FEATURE_WORDS = ("ag", "nov")  # August and November, in many languages


def save(page: Any, button: Any, name: str) -> None:
    """Press a button "Save SVG", and keep the file that it saves."""
    with page.expect_download() as download:
        button.click()
    download.value.save_as(PICTURES / name)


def open_look(browser: Any, look: Any, folder: str) -> Any:
    """Open the page of a look."""
    path = Path(folder) / "look.html"
    look.save(path)
    page = browser.new_page(accept_downloads=True)
    page.goto(path.as_uri())
    return page


def write_features(model: qkv.Model, path: Path) -> None:
    """Train a sparse autoencoder on dates, and write a page with two of its features."""
    dates = find_dataset("dates")
    rows = [dates.example("train", number) for number in range(NUM_DATES)]
    pairs = [(row["written"], row["iso"]) for row in rows]
    examples = inside.encode_examples(model.network, model.tokenizer, pairs)
    autoencoder = inside.fit_autoencoder(
        model.network,
        examples,
        FEATURES_SITE,
        features=512,
        k=8,
        options=inside.AutoencoderOptions(steps=1000),
        batch_size=128,
    )
    report = inside.summarise_features(
        model.network, autoencoder, examples[:2000], tokenizer=model.tokenizer, num_examples=6, batch_size=128
    )

    def is_about(feature: inside.FeatureSummary, word: str) -> bool:
        return all(word in "".join(example.tokens.texts).casefold() for example in feature.examples)

    chosen = [next(one for one in report.features if is_about(one, word)) for word in FEATURE_WORDS]
    replace(report, features=tuple(chosen)).save(path)


def main(folder: str) -> None:
    """Draw all pictures with the model of a folder."""
    model = qkv.load(folder)
    look = model.look(TEXT)
    (PICTURES / "inside-heads.svg").write_text(draw_attention(look.document), encoding="utf-8")
    with tempfile.TemporaryDirectory() as temporary, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        page = open_look(browser, look, temporary)
        save(page, page.locator("#alignment").get_by_role("button", name="Save SVG"), "inside-alignment.svg")
        page.locator("button.head").last.click()
        save(page, page.locator("dialog").get_by_role("button", name="Save SVG"), "inside-head.svg")
        page = open_look(browser, model.look(UNCERTAIN_TEXT, beam=3, max_tokens=12), temporary)
        save(page, page.locator("#search").get_by_role("button", name="Save SVG"), "inside-search.svg")
        write_features(model, Path(temporary) / "features.html")
        page = browser.new_page(viewport={"width": 640, "height": 640}, device_scale_factor=1.5)
        page.goto((Path(temporary) / "features.html").as_uri())
        page.locator("body").screenshot(path=PICTURES / "inside-features.png")
        browser.close()


if __name__ == "__main__":
    main(*sys.argv[1:2])
