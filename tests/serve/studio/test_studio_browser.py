"""The studio in a real browser: every panel on every family, its numbers, its errors, and its use without a mouse."""

import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import urlencode

import pytest
import torch
from browsing import find_axe_errors, open_browser
from look_models import make_model
from serving import served

from qkv.decode import GenerationOptions
from qkv.decode.filters import make_filters
from qkv.inside import SparseAutoencoder, zero_ablate
from qkv.inside.autoencoder.model import AutoencoderConfig
from qkv.serve.http.keys import add_key
from qkv.serve.studio.options import StudioOptions
from qkv.serve.studio.runs import Runs
from qkv.tasks.study import StudyPlan, create

FAMILIES = ("encoder", "decoder", "seq2seq")
TEXT = "the cat chased"
PANELS = {
    "tokens": ".tokens li",
    "attention": "button.head",
    "mask": "#panel .heatmap",
    "lens": ".lens .cell",
    "next": "#panel .bar",
    "search": "#panel [data-done] .tree",
    "words": ".word",
    "neurons": "#panel .chip",
    "switches": ".switch",
    "runs": ".curves",
}
OWN_PANELS = ("tokens", "next", "words", "switches", "runs")
"""Panels with elements of the studio's own. The tests of `qkv look` check the other pictures with axe."""
NOTES = {("encoder", "search"): "it does not generate text"}
"""A panel that a family does not have says so."""


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with open_browser() as running:
        yield running


@pytest.fixture(scope="module")
def studio(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A server with a model of each family, and a run."""
    folder = tmp_path_factory.mktemp("runs") / "small"
    folder.mkdir()
    (folder / "recipe.toml").write_text("")
    records: list[dict[str, Any]] = [
        {"kind": "step", "step": step, "loss": 5 / step, "tokens": step} for step in (1, 2, 3)
    ]
    records.append({"kind": "eval", "step": 3, "loss": 1.5, "exact_match": 0.25})
    records.append({"kind": "sample", "step": 3, "source": "le chat", "prediction": "the", "expected": "the cat"})
    records.append({"kind": "note", "step": 1, "text": "a char tokenizer"})
    log = folder / "metrics.jsonl"
    log.write_text("".join(json.dumps(record) + "\n" for record in records))
    models = {family: make_model(family) for family in FAMILIES}
    autoencoder = SparseAutoencoder(AutoencoderConfig(width=16, features=8, k=2, site="encoder.0.resid_post"))
    with served({**models, "gone": "/nowhere/model"}) as (address, app):
        app.state.studio = StudioOptions(Runs([folder.parent]), {"sae": autoencoder})
        yield SimpleNamespace(address=address, models=models, log=log, server=app.state.server)


class Studio:
    """The studio in the browser, and the errors that it caused."""

    def __init__(self, browser: Any, address: str, panel: str, model: str, text: str = TEXT, **choices: Any) -> None:
        context = {name: choices.pop(name) for name in ("color_scheme", "viewport") if name in choices}
        self.page = browser.new_context(reduced_motion="reduce", **context).new_page()
        self.errors: list[str] = []
        self.page.on("console", lambda message: self.errors.append(message.text) if message.type == "error" else None)
        self.page.on("pageerror", lambda error: self.errors.append(str(error)))
        self.page.goto(f"{address}/#{panel}?{urlencode({'model': model, 'text': text, **choices})}")
        self.wait(panel)

    def wait(self, panel: str) -> None:
        self.page.wait_for_selector(f"#studio[data-ready={panel}]", state="attached")

    def go(self, panel: str) -> None:
        self.page.locator(f"nav a[data-panel={panel}]").click()
        self.wait(panel)

    def answer(self) -> str:
        return self.page.locator(".answer-text").first.inner_text().strip()

    def alert(self, pattern: str) -> None:
        self.page.locator("[role=alert]", has_text=re.compile(pattern)).wait_for()


@pytest.mark.parametrize("family", FAMILIES)
def test_every_panel_is_drawn_without_errors(browser: Any, studio: Any, family: str) -> None:
    opened = Studio(browser, studio.address, "tokens", family, viewport={"width": 360, "height": 800})
    for panel, drawn in PANELS.items():
        opened.go(panel)
        if note := NOTES.get((family, panel)):
            assert note in opened.page.locator("#panel").inner_text()
        else:
            opened.page.wait_for_selector(drawn)
        assert opened.page.evaluate("document.documentElement.scrollWidth") <= 360
    assert not opened.errors
    assert (opened.page.locator("#target").is_visible()) == (family == "seq2seq")


@pytest.mark.parametrize(("family", "scheme"), [("seq2seq", "light"), ("decoder", "dark")])
def test_axe_finds_no_error(browser: Any, studio: Any, family: str, scheme: str) -> None:
    other = "encoder" if scheme == "dark" else ""
    opened = Studio(
        browser, studio.address, "tokens", family, color_scheme=scheme, step=1, other=other, off="decoder.0"
    )
    for panel in OWN_PANELS:
        opened.go(panel)
        opened.page.wait_for_selector(PANELS[panel])
        assert not find_axe_errors(opened.page, "body" if panel == "tokens" else "#panel", unfold=False), panel


def test_the_numbers_of_a_head_equal_torch(browser: Any, studio: Any) -> None:
    """The exact numbers are fetched when the head is opened, with the switches of the page."""
    model = studio.models["decoder"]
    opened = Studio(browser, studio.address, "attention", "decoder", off="decoder.0.mlp", head="decoder.1.2")
    page = opened.page
    page.wait_for_selector("dialog[open] .steps table")
    pattern = model.trace(TEXT, sites=["*pattern"], edits=zero_ablate("decoder.0.mlp_out"))["decoder.1.pattern"][2]
    page.get_by_label("Query").select_option(index=7)
    shown = [float(text) for text in page.locator("dialog .steps .bar b").all_inner_texts()]
    assert shown == pytest.approx(pattern[7].tolist(), abs=6e-5)
    unedited = model.trace(TEXT, sites=["*pattern"])["decoder.1.pattern"][2]
    assert shown != pytest.approx(unedited[7].tolist(), abs=6e-5)  # a negative control: the switch matters


@pytest.mark.parametrize(
    ("temperature", "top_k", "top_p"), [(1.0, 0, 1.0), (0.5, 5, 1.0), (1.7, 0, 0.6), (0.8, 12, 0.9), (1.0, 1, 0.05)]
)
def test_the_distribution_equals_the_filters_of_torch(
    browser: Any, studio: Any, temperature: float, top_k: int, top_p: float
) -> None:
    logits = torch.randn(1, 40, generator=torch.Generator().manual_seed(top_k), dtype=torch.float64) * 2
    logits[0, 7] = logits[0].topk(5).values[-1]  # a tie at the end of the top 5
    options = GenerationOptions(temperature=temperature, top_k=top_k, top_p=top_p)
    filtered = logits
    for apply in make_filters(options, (), 0):
        filtered = apply(filtered, torch.zeros(1, 0, dtype=torch.long))
    expected = sorted(filtered.softmax(-1)[0].tolist(), reverse=True)
    page = browser.new_page()
    code = """async ([logits, settings]) => {
        const {distribution} = await import("/studio/distribution.js");
        return distribution(logits, settings); }"""
    settings = {"temperature": temperature, "topK": top_k, "topP": top_p}
    page.goto(f"{studio.address}/")
    found = page.evaluate(code, [sorted(logits[0].tolist(), reverse=True), settings])
    assert found["kept"] == sum(value > 0 for value in expected)
    assert found["probabilities"] == pytest.approx(expected[: found["kept"]], abs=1e-9)
    page.close()


def test_typing_traces_again_and_long_texts_are_refused(browser: Any, studio: Any) -> None:
    opened = Studio(browser, studio.address, "tokens", "decoder")
    page = opened.page
    page.locator("#text").fill("le chat")
    page.wait_for_function("() => document.querySelectorAll('.tokens li').length === 7")
    page.wait_for_function("() => location.hash.includes('le+chat')")
    page.locator("#text").fill("a" * 9000)
    opened.alert("text must have at most 8,000 characters, and has 9,000; shorten it")
    assert page.locator(".tokens li").count() == 7  # the last picture stays
    page.locator("#text").fill("the")
    page.wait_for_function("() => document.querySelectorAll('.tokens li').length === 3")
    assert page.locator("[role=alert]").inner_text() == ""


def test_hostile_texts_stay_text(browser: Any, studio: Any) -> None:
    attack = "<img src=x onerror='window.broken=1'>"
    opened = Studio(browser, studio.address, "tokens", "decoder", attack)
    for panel in ("words", "next", "search", "attention"):
        opened.go(panel)
        opened.page.wait_for_selector(PANELS[panel])
    assert opened.page.evaluate("window.broken") is None
    assert opened.page.locator("img").count() == 0
    assert opened.page.locator("#text").input_value() == attack


def test_a_missing_model_and_a_missing_server_are_reported(browser: Any, studio: Any) -> None:
    opened = Studio(browser, studio.address, "tokens", "encoder")
    page = opened.page
    page.locator(".models select").first.select_option("gone")
    opened.alert("/nowhere/model")
    opened.go("runs")  # it needs no model
    page.wait_for_selector(".curves")
    opened.page.locator("nav a[data-panel=tokens]").click()
    opened.alert("/nowhere/model")
    page.locator(".models select").first.select_option("encoder")
    page.wait_for_function("() => document.querySelector('[role=alert]').textContent === ''")
    page.route("**/studio/api/**", lambda route: route.abort())
    page.locator("#text").fill("cat")
    opened.alert("The server does not answer. It may have been stopped")
    page.unroute("**/studio/api/**")
    page.evaluate("document.querySelector('[role=alert] button')?.click()")  # unless the page has tried again by itself
    page.wait_for_function("() => document.querySelectorAll('.tokens li').length === 3")


def test_a_server_with_keys_asks_for_one(browser: Any, tmp_path: Path) -> None:
    key = add_key(tmp_path / "keys", "me")
    with served({"decoder": make_model("decoder")}, keys=tmp_path / "keys") as (address, _):
        page = browser.new_page()
        page.goto(address)
        page.get_by_label("API key").fill(key)
        page.get_by_role("button", name="Use this key").click()
        page.wait_for_selector(".tokens li")
        page.close()


def test_switches_recompute_the_answer_and_a_link_reproduces_the_view(browser: Any, studio: Any) -> None:
    """With the keyboard alone."""
    model = studio.models["decoder"]
    opened = Studio(browser, studio.address, "switches", "decoder")
    page = opened.page
    assert opened.answer() == model.generate(TEXT, max_tokens=16).text.strip()
    page.locator(".switch").first.focus()
    for key in ("ArrowDown", "ArrowRight", "ArrowRight", "Space"):
        page.keyboard.press(key)
    page.wait_for_selector(".switch[data-part='decoder.1.head.1'][aria-pressed=true]")
    assert page.evaluate("document.activeElement.dataset.part") == "decoder.1.head.1"  # the focus stays
    page.keyboard.press("End")
    page.keyboard.press("Enter")
    page.wait_for_selector(".switch[data-part='decoder.1.mlp'][aria-pressed=true]")
    edits = [zero_ablate("decoder.1.z", heads=[1]), zero_ablate("decoder.1.mlp_out")]
    expected = model.generate(TEXT, max_tokens=16, edits=edits).text.strip()
    assert opened.answer() == expected
    again = browser.new_page()
    again.goto(page.url)
    again.wait_for_selector(".switch[data-part='decoder.1.mlp'][aria-pressed=true]")
    assert again.locator(".switch.off").count() == 2
    assert again.locator(".answer-text").first.inner_text().strip() == expected
    again.get_by_role("button", name="Switch all on").first.click()
    again.wait_for_function("() => !document.querySelector('.switch.off')")
    assert not opened.errors


def test_switches_that_are_clicked_before_the_answer_comes_are_all_switched(browser: Any, studio: Any) -> None:
    opened = Studio(browser, studio.address, "switches", "decoder")
    opened.page.evaluate("document.querySelectorAll('.switch').forEach((one, i) => i < 3 && one.click())")
    opened.page.wait_for_selector(".switch[data-part='decoder.0.head.1'][aria-pressed=true]")
    assert opened.page.locator(".switch[aria-pressed=true]").count() == 3


def test_a_head_is_switched_off_where_it_is_shown(browser: Any, studio: Any) -> None:
    opened = Studio(browser, studio.address, "attention", "seq2seq")
    opened.page.locator("button.head").last.click()
    opened.page.get_by_role("button", name="Switch this head off").click()
    opened.page.wait_for_selector("button.head.off")
    assert "off=decoder.1.cross.2" in opened.page.url
    assert "switched off" in opened.page.locator("button.head.off").get_attribute("aria-label")


def test_two_models_are_shown_side_by_side(browser: Any, studio: Any) -> None:
    opened = Studio(browser, studio.address, "next", "decoder", viewport={"width": 1280, "height": 900})
    opened.page.locator(".models select").last.select_option("seq2seq")
    opened.page.wait_for_selector("#panel .column:nth-child(2) .bar")
    headings = opened.page.locator("#panel .side").all_inner_texts()
    assert headings == ["decoder", "seq2seq"]
    left, right = (opened.page.locator("#panel .column").nth(i).bounding_box() for i in (0, 1))
    assert left["x"] + left["width"] < right["x"]


@pytest.mark.parametrize("panel", ["attention", "lens"])
def test_pictures_are_saved_as_svg_and_png(browser: Any, studio: Any, panel: str) -> None:
    opened = Studio(browser, studio.address, panel, "decoder")
    opened.page.wait_for_selector(PANELS[panel])
    saved = {}
    for kind in ("SVG", "PNG"):
        with opened.page.expect_download() as download:
            opened.page.locator(f"[data-picture={kind}]").click()
        assert download.value.suggested_filename == f"{panel}.{kind.lower()}"
        saved[kind] = Path(download.value.path()).read_bytes()
    assert saved["PNG"].startswith(b"\x89PNG")
    assert len(saved["PNG"]) > 5000
    text = saved["SVG"].decode()
    assert ("<image" in text) == (panel == "attention")
    assert "layer 1" in text
    assert "class=" not in text
    assert "foreignObject" not in text
    assert not opened.errors


def test_a_large_screen_is_used_and_saved_pictures_stay_the_same(browser: Any, studio: Any) -> None:
    save_token = """async () => {
      const {toSvg} = await import("/studio/export.js");
      return toSvg(document.querySelector(".tokens li")).width;
    }"""
    widths = []
    for width, height in ((1280, 900), (3840, 2160)):
        opened = Studio(browser, studio.address, "tokens", "seq2seq", viewport={"width": width, "height": height})
        widths.append(opened.page.evaluate(save_token))
    assert opened.page.evaluate("document.querySelector('#studio').getBoundingClientRect().width") > 0.85 * 3840
    assert opened.page.evaluate("document.documentElement.scrollWidth") <= 3840
    assert widths[0] == widths[1]


def test_a_beam_search_grows(browser: Any, studio: Any) -> None:
    opened = Studio(browser, studio.address, "search", "decoder", maxTokens=5)
    opened.page.wait_for_selector("[data-done] .tree")
    assert "ran for 5 steps" in opened.page.locator("#panel").inner_text()
    assert opened.page.locator(".tree .best").count() >= 5
    with opened.page.expect_request("**/api/search"):
        opened.page.get_by_label("Beams").fill("2")
        opened.page.get_by_label("Beams").press("Enter")
    opened.page.wait_for_selector("[data-done] .tree")
    assert "with 2 beams" in opened.page.locator("#panel").inner_text()


def test_tokens_and_scores_of_a_beam_search_do_not_overlap(browser: Any, studio: Any) -> None:
    opened = Studio(browser, studio.address, "search", "decoder", maxTokens=2)
    one = {"text": " endormie", "score": -1234.56, "parent": None, "kept": True, "ended": False}
    gaps = opened.page.evaluate(
        """async (one) => {
          const {searchView} = await import("/studio/page/view_search.js");
          document.querySelector("#panel").replaceChildren(
            searchView({search: {beam: 1, steps: [[one]], hypotheses: [], stop_reason: "", best: null}}));
          const [token, score] = [".node .token", ".node .score"].map((part) => document.querySelector(part).getBBox());
          return score.x - (token.x + token.width);
        }""",
        one,
    )
    assert gaps > 2


def test_a_long_hypothesis_does_not_hide_its_score(browser: Any, studio: Any) -> None:
    opened = Studio(browser, studio.address, "search", "decoder", maxTokens=2, viewport={"width": 1280, "height": 900})
    right = opened.page.evaluate(
        """async () => {
          const {searchView} = await import("/studio/page/view_search.js");
          const one = {text: "word ".repeat(80), logprob: -1, length: 80, score: -1};
          document.querySelector("#panel").replaceChildren(
            searchView({search: {beam: 1, steps: [[]], hypotheses: [one], stop_reason: "", best: null}}));
          return document.querySelector("#panel .numbers td:last-child").getBoundingClientRect().right;
        }"""
    )
    assert right <= 1280


def test_the_axes_of_curves_have_round_numbers(browser: Any, studio: Any) -> None:
    opened = Studio(browser, studio.address, "runs", "decoder")
    opened.page.wait_for_selector(".curves polyline")
    _, *ticks = opened.page.locator(".curves").first.locator(".tick").all_text_contents()
    assert len(ticks) > 6
    assert all(tick.isdigit() for tick in ticks), ticks


def test_a_source_is_changed_word_by_word(browser: Any, studio: Any) -> None:
    model = studio.models["seq2seq"]
    opened = Studio(browser, studio.address, "words", "seq2seq")
    opened.page.locator(".word").nth(1).fill("chat")
    opened.page.locator(".word").nth(1).press("Enter")
    opened.page.wait_for_function("() => document.getElementById('text').value === 'the chat chased'")
    opened.page.wait_for_selector(".word[value=chat]")
    expected = model.generate("the chat chased", max_tokens=47).text.strip()
    assert opened.answer() == (" ".join(expected.split()) or "(empty)")
    opened.page.get_by_role("button", name="Compute the answers").click()
    rows = opened.page.locator("#panel tbody tr th")
    rows.first.wait_for()
    assert rows.all_inner_texts()[-3:] == ["the", "chat", "chased"]


def test_the_word_alignment_is_that_of_translate(browser: Any, studio: Any) -> None:
    links = studio.models["seq2seq"].translate(TEXT, align=True, max_tokens=47).alignment
    assert links
    opened = Studio(browser, studio.address, "words", "seq2seq")
    opened.page.get_by_text("Alignment as a table").click()
    opened.page.wait_for_selector("#panel tbody tr")
    rows = [row.locator("th, td").all_inner_texts() for row in opened.page.locator("#panel tbody tr").all()]
    assert rows == [[link.target, link.source, f"{link.weight:.2f}"] for link in links]
    assert opened.page.locator(".alignment .link-line").count() == len(links)


def test_top_examples_of_a_neuron_are_shown(browser: Any, studio: Any) -> None:
    opened = Studio(browser, studio.address, "neurons", "encoder")
    opened.page.locator("#panel textarea").fill("le chat\n14 mai 1989")
    opened.page.locator("#panel .numbers .link").first.click()
    opened.page.wait_for_selector(".examples tbody tr")
    assert opened.page.locator(".examples tbody tr").count() == 3  # these two, and the text itself
    assert "of 3 texts" in opened.page.locator(".examples").inner_text()
    opened.page.locator("#panel select").select_option("features of sae")
    opened.page.wait_for_selector("caption:has-text('8 features at encoder.0.resid_post')")
    opened.page.locator("#panel .numbers .link").first.click()
    opened.page.wait_for_selector(".examples h3:has-text('Feature')")
    opened.page.reload()  # the link keeps the chosen layer
    opened.page.wait_for_selector("caption:has-text('8 features at encoder.0.resid_post')")
    assert not opened.errors


def test_a_run_is_followed_while_it_trains(browser: Any, studio: Any) -> None:
    opened = Studio(browser, studio.address, "runs", "decoder")
    opened.page.wait_for_selector(".curves polyline")
    before = opened.page.locator(".curves polyline").first.get_attribute("points").split()
    text = opened.page.locator("#panel").inner_text()
    assert all(part in text for part in ("the cat", "a char tokenizer", "exact_match"))
    with studio.log.open("a") as file:
        file.write(json.dumps({"kind": "step", "step": 4, "loss": 0.5, "tokens": 4}) + "\n")
    opened.page.wait_for_function(
        f"() => document.querySelector('.curves polyline').points.length === {len(before) + 1}"
    )
    assert not opened.errors


def test_the_walk_through_has_eight_steps(browser: Any, studio: Any) -> None:
    opened = Studio(browser, studio.address, "tokens", "encoder")
    opened.page.get_by_role("button", name="What is attention? Try it").click()
    titles = []
    for number in range(1, 9):
        opened.page.get_by_role("heading", name=f"{number} of 8").wait_for()
        titles.append(opened.page.locator("#walk-title").inner_text())
        if number < 8:
            opened.page.get_by_role("button", name="Next →").click()
    assert len(set(titles)) == 8
    opened.page.get_by_role("button", name="Try it", exact=True).click()
    opened.page.wait_for_selector(".switch[data-part='encoder.0'].off")
    opened.page.get_by_role("button", name="End the walk-through").click()
    opened.page.wait_for_function("() => !document.querySelector('.walk')")
    assert not opened.errors


def test_the_runs_of_a_study_are_chosen_together(browser: Any, studio: Any, tmp_path: Path) -> None:
    folder = studio.log.parents[1] / "s"
    base = 'data.train = "text.txt"\nobjective.kind = "causal_lm"\ntrain.steps = 3\n'
    (tmp_path / "base.toml").write_text(base)
    vary = {"model.feedforward": ("gelu", "swiglu")}
    study = create(folder, StudyPlan(recipe=str(tmp_path / "base.toml"), vary=vary, seeds=2))
    for number, cell in enumerate(study.cells()):
        (folder / cell.name).mkdir()
        (folder / cell.name / "recipe.toml").write_text("")
        steps = [{"kind": "step", "step": step, "loss": number + 5 / step, "tokens": step} for step in (1, 2, 3)]
        (folder / cell.name / "metrics.jsonl").write_text("".join(json.dumps(step) + "\n" for step in steps))
    opened = Studio(browser, studio.address, "runs", "decoder")
    opened.page.get_by_role("button", name="study s").click()
    opened.page.get_by_text("0 of 4 runs are finished").wait_for()
    assert opened.page.locator("table", has_text="The variants of the study").locator("tbody tr").count() == 2
    lines = opened.page.locator(".curves").first.locator("polyline")
    looks = [lines.nth(i).get_attribute("class") for i in range(lines.count())]
    shutil.rmtree(folder)
    assert sorted(looks.count(look) for look in set(looks)) == [2, 2], "one look for each variant"
    assert not opened.errors
