"""The page of features: self-contained, and safe for any text."""

from html.parser import HTMLParser
from pathlib import Path

from qkv.inside.autoencoder import AutoencoderReport, FeatureReport, FeatureSummary
from qkv.inside.neurons import ActivatingExample, TokenEffect, VocabularyEffect
from qkv.inside.tokens import TokenList

TEXTS = ("<b>", "&", "\n", "x")


def make_report() -> FeatureReport:
    tokens = TokenList((1, 2, 3, 4), TEXTS, (False,) * 4)
    example = ActivatingExample(2.0, 0, 2, tokens, (0.0, 1.0, 2.0, 0.0), 2)
    effect = VocabularyEffect((TokenEffect(7, "</code>", 1.5),), ())
    measures = AutoencoderReport(0.9, 5.0, 0.1, 2.0, 2.1, 5.0, 0.967, 100)
    return FeatureReport("decoder.0.resid_post", (FeatureSummary(3, 0.01, (example,), effect),), 64, measures)


class Reader(HTMLParser):
    """Collects the text of a page, the open elements, and attributes that load something."""

    def __init__(self) -> None:
        super().__init__()
        self.text = ""
        self.open: list[str] = []
        self.loads: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.loads += [name for name, _ in attrs if name in ("src", "href")]
        if tag != "meta":
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def test_the_page_is_well_formed_and_loads_nothing() -> None:
    page = make_report().to_html("A <title>")
    reader = Reader()
    reader.feed(page)
    assert not reader.open
    assert not reader.loads
    assert "http" not in page
    assert "<script" not in page
    assert "<b>&⏎x" in reader.text
    assert "A <title>" in reader.text
    assert "</code>" in reader.text


def test_the_page_shows_the_measures_and_the_activations() -> None:
    page = make_report().to_html()
    assert 'class="peak" style="--heat-alpha: 0.60" title="2.00"' in page
    assert 'style="--heat-alpha: 0.30" title="1.00"' in page
    assert "96.7%" in page
    assert "1 of 64 features" in page


def test_the_page_is_written(tmp_path: Path) -> None:
    make_report().save(tmp_path / "new" / "features.html")
    assert (tmp_path / "new" / "features.html").read_text(encoding="utf-8").startswith("<!doctype html>")
