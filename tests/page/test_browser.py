"""The page in a real browser: it draws every view, its numbers equal torch's, and it works without a mouse.

These tests need Debian's `chromium` (or another one, named by CHROMIUM) and the playwright package. The accessibility
tests read axe-core from the axe-playwright-python package.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from browsing import find_axe_errors, open_browser
from look_models import make_model

from qkv.page import build_page, bundle_scripts, pack, pack_signed, pack_weights, unpack
from qkv.page.html import read_static

FAMILIES = ("encoder", "decoder", "seq2seq")
TEXT = "the cat chased"
VIEWS = {"tokens", "embeddings", "attention", "lens", "neurons", "mask"}


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with open_browser() as running:
        yield running


class Opened:
    """A page of a document in the browser, and the errors and requests that it caused."""

    def __init__(self, browser: Any, folder: Path, document: Any, **context: Any) -> None:
        file = folder / "page.html"
        file.write_text(build_page(document), encoding="utf-8")
        self.page = browser.new_context(**context).new_page()
        self.errors: list[str] = []
        self.requests: list[str] = []
        self.page.on("console", lambda message: self.errors.append(message.text) if message.type == "error" else None)
        self.page.on("pageerror", lambda error: self.errors.append(str(error)))
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.goto(file.as_uri())
        self.page.wait_for_selector("#look[data-ready]", state="attached")


@pytest.fixture(scope="module")
def looks() -> dict[str, Any]:
    """The model and the document of each family."""
    found = {}
    for family in FAMILIES:
        model = make_model(family, position="rotary" if family == "decoder" else "learned")
        found[family] = (model, json.loads(model.look(TEXT, max_tokens=6).to_json()))
    return found


@pytest.mark.parametrize("family", FAMILIES)
def test_every_view_is_drawn_without_errors_and_without_network(
    browser: Any, looks: dict[str, Any], family: str, tmp_path: Path
) -> None:
    opened = Opened(browser, tmp_path, looks[family][1])
    page = opened.page
    expected = (
        VIEWS | ({"search"} if family != "encoder" else set()) | ({"alignment"} if family == "seq2seq" else set())
    )
    assert {section.get_attribute("id") for section in page.query_selector_all("section")} == expected
    page.wait_for_selector(".lens .cell")
    assert page.locator("nav a").count() == len(expected)
    for summary in page.query_selector_all("summary"):
        summary.click()
    page.wait_for_function("() => [...document.querySelectorAll('details')].every((one) => one.children.length > 1)")
    assert not opened.errors
    assert all(url.startswith(("file:", "blob:", "data:")) for url in opened.requests)


@pytest.mark.parametrize("family", FAMILIES)
def test_the_numbers_of_an_opened_head_equal_torch(
    browser: Any, looks: dict[str, Any], family: str, tmp_path: Path
) -> None:
    """The table step by step is computed in the page from q, k and v; it shows three or four digits."""
    model, document = looks[family]
    trace = model.trace(TEXT, sites=["*pattern", "*.q", "*.k", "*.v"] + (["*cross_*"] if family == "seq2seq" else []))
    page = Opened(browser, tmp_path, document).page
    attention = document["attention"][-1]
    stack, prefix = attention["queries"], "cross_" if attention["name"] == "cross" else ""
    page.locator("button.head").last.click()  # the last layer and head of the last attention
    page.wait_for_selector("dialog[open] .steps table")
    q, k, v = (trace[f"{stack}.1.{prefix}{name}"][2].double() for name in "qkv")
    pattern = trace[f"{stack}.1.{prefix}pattern"][2]
    for query in (0, len(pattern) - 1):
        page.get_by_label("Query").select_option(index=query)
        headings = page.locator("dialog .steps thead th").all_inner_texts()
        columns = {heading.split(":")[0]: column for column, heading in enumerate(headings)}
        rows = [row.locator("th, td").all_inner_texts() for row in page.locator("dialog .steps tbody tr").all()]
        assert len(rows) == pattern.shape[1]
        for key, row in enumerate(rows):
            shown = {name: row[column].replace("−", "-") for name, column in columns.items()}
            assert float(shown["q · k"]) == pytest.approx(float(q[query] @ k[key]), abs=6e-4)
            assert float(shown["softmax"]) == pytest.approx(float(pattern[query, key]), abs=6e-5)
            norm = float(pattern[query, key] * v[key].norm())
            assert float(shown["‖weight · v‖"]) == pytest.approx(norm, abs=6e-4)


def test_the_alignment_between_words_equals_numpy(browser: Any, looks: dict[str, Any], tmp_path: Path) -> None:
    """Weights are summed over the tokens of a source word, and averaged over those of a target word and over heads.

    The heads are those of the last layer but one.
    """
    model, _ = looks["seq2seq"]
    document = json.loads(model.look("the cat chased", "le chat a", beam=1).to_json())
    cross = document["attention"][-1]
    mean = unpack(cross["patterns"][-2]).mean(axis=0)  # (targets, sources)
    source, target = document["sequences"]["encoder"]["words"], document["alignment"]["written"]["words"]
    weights = np.zeros((max(target) + 1, max(source) + 1))
    for i, row in enumerate(mean):
        for j, weight in enumerate(row):
            weights[target[i], source[j]] += weight / target.count(target[i])
    page = Opened(browser, tmp_path, document).page
    page.locator("#alignment select").last.select_option("words")
    page.wait_for_selector(f"#alignment svg[aria-label*='{weights.shape[1]} source']")
    page.get_by_text("Alignment as a table").click()
    page.wait_for_selector("#alignment tbody tr")
    rows = [row.locator("th, td").all_inner_texts() for row in page.locator("#alignment tbody tr").all()]
    assert [row[0] for row in rows[:2]] == ["le", "chat"]
    for row, expected in zip(rows, weights, strict=True):
        shown = [float(cell.rsplit(" ", 1)[1]) for cell in row[1:]]
        assert shown == pytest.approx(sorted(expected, reverse=True)[:3], abs=0.006)


def test_patterns_and_arrays_are_unpacked_as_in_python(browser: Any) -> None:
    arrays = [
        pack(np.array([[1.5, -2.25], [1e-30, 3e30]], np.float32)),
        pack(np.array([7, -9, 2**31 - 1], np.int32)),
        pack_weights(np.linspace(0, 1, 50).reshape(5, 10)),
        pack_signed(np.linspace(-3, 2, 11)),
    ]
    page = browser.new_page()
    page.goto("about:blank")
    code = f"""async (arrays) => {{ {bundle_scripts()}
        const opened = await Promise.all(arrays.map(modules["unpack.js"].unpack));
        return opened.map((one) => [one.shape, [...one.data].map((_, i) => one.value(i))]); }}"""
    for packed, (shape, values) in zip(arrays, page.evaluate(code, arrays), strict=True):
        assert shape == packed["shape"]
        np.testing.assert_allclose(np.reshape(values, shape), unpack(packed), rtol=1e-12)


def test_a_query_that_attends_to_nothing_gets_zeros(browser: Any) -> None:
    page = browser.new_page()
    code = f"""() => {{ {bundle_scripts()}
        return modules["attention_steps.js"].attentionSteps({{q: [1, 2], keys: [[1, 0], [0, NaN]],
            values: [[1, 1], [NaN, 2]], scale: 1, bias: null, visible: [false, false]}}); }}"""
    steps = page.evaluate(code)
    assert steps["weights"] == [0, 0]
    assert steps["z"] == [0, 0]


def test_hostile_tokens_stay_text(browser: Any, looks: dict[str, Any], tmp_path: Path) -> None:
    attack = "</script><img src=x onerror='window.broken=1'><script>window.broken=1</script>"
    document = json.loads(json.dumps(looks["seq2seq"][1]))
    for sequence in document["sequences"].values():
        sequence["texts"] = [attack for _ in sequence["texts"]]
    document["alignment"]["written"]["texts"] = [attack for _ in document["alignment"]["written"]["texts"]]
    document["lens"]["vocabulary"] = dict.fromkeys(document["lens"]["vocabulary"], attack)
    document["title"] = document["subtitle"] = document["footer"] = attack
    document["notes"] = [attack]
    for step in document["search"]["steps"]:
        for candidate in step:
            candidate["text"] = attack
    opened = Opened(browser, tmp_path, document)
    opened.page.locator("button.head").first.click()
    opened.page.wait_for_selector("dialog[open] .steps table")
    assert opened.page.evaluate("window.broken") is None
    assert opened.page.locator("img").count() == 0
    assert opened.page.locator("script").count() == 2
    assert opened.page.locator("h1").inner_text() == attack
    assert not opened.errors


def test_injected_scripts_do_not_run(browser: Any, looks: dict[str, Any], tmp_path: Path) -> None:
    """A negative control of the policy: even markup that reached the page could not run code or fetch anything."""
    opened = Opened(browser, tmp_path, looks["encoder"][1])
    opened.page.evaluate(
        """() => {
            const script = document.createElement("script");
            script.textContent = "window.broken = 1";
            document.body.append(script);
            const image = document.createElement("img");
            image.src = "https://example.invalid/x.png";
            document.body.append(image);
        }"""
    )
    opened.page.wait_for_timeout(50)
    assert opened.page.evaluate("window.broken") is None
    assert len([error for error in opened.errors if "Content Security Policy" in error]) == 2


def test_heads_are_opened_and_closed_with_the_keyboard(browser: Any, looks: dict[str, Any], tmp_path: Path) -> None:
    page = Opened(browser, tmp_path, looks["decoder"][1]).page
    page.locator("button.head").first.focus()
    assert page.locator("button.head[tabindex='0']").count() == 1
    for key in ("ArrowRight", "ArrowDown", "End", "Home", "ArrowRight"):
        page.keyboard.press(key)
    label = page.evaluate("document.activeElement.getAttribute('aria-label')")
    assert "layer 1, head 1" in label
    page.keyboard.press("Enter")
    page.wait_for_selector("dialog[open]")
    assert "layer 1 · head 1" in page.locator("dialog h2").inner_text()
    page.get_by_role("button", name="Next head").click()
    page.wait_for_function("() => document.querySelector('dialog h2').textContent.includes('layer 1 · head 2')")
    page.keyboard.press("Escape")
    page.wait_for_selector("dialog", state="detached")
    assert page.evaluate("document.activeElement.getAttribute('aria-label')") == label


def test_the_theme_follows_the_system_and_the_button(browser: Any, looks: dict[str, Any], tmp_path: Path) -> None:
    page = Opened(browser, tmp_path, looks["decoder"][1], color_scheme="dark").page
    background = "getComputedStyle(document.body).backgroundColor"
    pixels = "document.querySelector('button.head canvas').toDataURL()"
    page.wait_for_function("() => document.querySelector('button.head canvas').width > 1")
    dark, dark_pixels = page.evaluate(background), page.evaluate(pixels)
    page.get_by_role("button", name="Switch to the light theme").click()
    assert page.evaluate(background) != dark
    assert page.evaluate(pixels) != dark_pixels


def test_the_next_head_is_announced_and_its_keys_are_one_tab_stop(
    browser: Any, looks: dict[str, Any], tmp_path: Path
) -> None:
    page = Opened(browser, tmp_path, looks["decoder"][1]).page
    page.locator("button.head").last.click()
    page.wait_for_selector("dialog[open] .steps table")
    assert page.locator("dialog h2").get_attribute("aria-live") == "polite"
    keys = page.locator("dialog .steps tbody button")
    assert keys.count() == len(TEXT)
    assert page.locator("dialog .steps tbody button[tabindex='0']").count() == 1
    keys.first.focus()
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    pressed = page.evaluate("document.activeElement.getAttribute('aria-pressed')")
    assert pressed == "true"
    assert page.evaluate("document.activeElement.textContent") == "1: h"
    assert "→ h (1)" in page.locator("dialog [role=status]").inner_text()


def test_a_mask_tells_the_reason_of_each_cell(browser: Any, looks: dict[str, Any], tmp_path: Path) -> None:
    """In colours, in letters, in words for the cell that is clicked, and in a table."""
    document = json.loads(looks["decoder"][0].look_at_mask(["the", "cat"], length=8).to_json())
    page = Opened(browser, tmp_path, document).page
    page.wait_for_selector("#mask .heatmap")
    cells = page.locator("#mask .heatmap rect")
    fills = [cell.get_attribute("fill") for cell in cells.all()]
    assert len(fills) == 8 * 8
    assert fills[0] == fills[8] != fills[1]  # h attends to t, but not t to h
    assert len(set(fills)) == 4  # visible, future, other document, padding
    cells.nth(1).click(force=True)  # its letter is above it
    assert page.locator("#mask [role=status]").inner_text() == "t (0) → h (1): future; the key comes after the query."
    page.get_by_text("Mask as a table").click()
    page.wait_for_selector("#mask tbody tr")
    rows = page.locator("#mask tbody tr").all()
    assert rows[4].locator("th, td").all_inner_texts() == ["a (4)", "3–4", "6–7", "0–2", "5"]
    text = page.locator("#mask").inner_text()
    assert "2 queries are padding" in text
    assert "Every token of the text attends to at least one key" in text


def test_tokens_without_width_are_visible_and_long_ones_are_shortened(
    browser: Any, looks: dict[str, Any], tmp_path: Path
) -> None:
    document = json.loads(json.dumps(looks["seq2seq"][1]))
    for sequence in document["sequences"].values():
        sequence["texts"][1:3] = ["\u200b", "x" * 300]
    page = Opened(browser, tmp_path, document).page
    page.wait_for_selector(".lens .cell")
    assert page.locator("#tokens .token").nth(1).inner_text() == "�"
    page.locator("button.head").last.click()
    page.wait_for_selector("dialog[open] .steps table")
    assert page.locator("dialog .steps table").bounding_box()["width"] < 700


@pytest.mark.parametrize("width", [360, 1280, 3840])
def test_the_page_does_not_scroll_sideways(browser: Any, looks: dict[str, Any], width: int, tmp_path: Path) -> None:
    page = Opened(browser, tmp_path, looks["seq2seq"][1], viewport={"width": width, "height": 800}).page
    page.wait_for_selector(".lens .cell")
    assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_a_server_can_serve_the_scripts_as_they_are(browser: Any, looks: dict[str, Any]) -> None:
    """The page inlines the scripts; a studio loads them as modules and calls `mount` with documents of its own."""
    page = browser.new_page()

    def answer(route: Any) -> None:
        name = route.request.url.rsplit("/", 1)[-1]
        if name == "":
            body = "<!doctype html><div id=root></div><script type=module src=studio.js></script>"
            route.fulfill(body=body, content_type="text/html")
        elif name == "studio.js":
            start = "import {mount} from './main.js'; mount(document.getElementById('root'), "
            route.fulfill(body=f"{start}{json.dumps(looks['seq2seq'][1])});", content_type="text/javascript")
        else:
            route.fulfill(body=read_static(name), content_type="text/javascript")

    page.route("http://studio.invalid/**", answer)
    page.goto("http://studio.invalid/")
    page.wait_for_selector("#root[data-ready]", state="attached")
    assert page.locator("section").count() == 8


def test_a_notebook_frame_draws_the_page(browser: Any, looks: dict[str, Any]) -> None:
    model, _ = looks["seq2seq"]
    page = browser.new_page()
    page.set_content(model.trace(TEXT)._repr_html_() + model.look(TEXT)._repr_html_())
    for frame in page.frames[1:]:
        frame.wait_for_selector("#look[data-ready]", state="attached")
    frame = page.frames[1]
    assert frame.locator("h1").inner_text().startswith(TEXT)
    frame.locator("nav a").last.click()
    assert frame.evaluate("document.activeElement.id") == "attention"
    frame.wait_for_function("() => scrollY > 0")
    assert page.frames[2].evaluate("scrollY") == 0
    assert frame.locator("button.head").count() == 3 * 2 * 3
    frame.locator("button.head").first.click()
    frame.wait_for_selector("dialog[open]")


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("family", FAMILIES)
def test_axe_finds_no_error(browser: Any, looks: dict[str, Any], family: str, scheme: str, tmp_path: Path) -> None:
    """The text is short, because axe takes its time for each element; the page is narrow, so that it must scroll."""
    document = json.loads(looks[family][0].look("a cat", max_tokens=4).to_json())
    viewport = {"width": 360, "height": 640}
    page = Opened(browser, tmp_path, document, color_scheme=scheme, viewport=viewport).page
    page.wait_for_selector(".lens .cell")
    assert not find_axe_errors(page)
    assert page.evaluate("[...document.querySelectorAll('[tabindex]')].some(one => one.scrollWidth > one.clientWidth)")
    page.locator("button.head").last.click()
    page.wait_for_selector("dialog[open] .steps table")
    assert not find_axe_errors(page, "dialog")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_no_error_in_a_mask(browser: Any, looks: dict[str, Any], scheme: str, tmp_path: Path) -> None:
    document = json.loads(looks["decoder"][0].look_at_mask(["the", "cat"], length=8).to_json())
    page = Opened(browser, tmp_path, document, color_scheme=scheme).page
    page.wait_for_selector("#mask .heatmap")
    assert not find_axe_errors(page)
    page.evaluate("document.querySelector('#mask .heatmap').removeAttribute('aria-label')")  # a negative control
    assert [name for name, *_ in find_axe_errors(page)] == ["svg-img-alt"]
