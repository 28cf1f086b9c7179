"""The page of a report in a real browser: all sections are drawn, in both themes, on a phone and on a screen."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from browsing import find_axe_errors, open_browser

from qkv.tasks.report import Advice, RunReport
from qkv.tasks.report.curve_verdict import CurveVerdict
from qkv.tasks.report.data import RecordCounts
from qkv.tasks.report.errors import ErrorReport
from qkv.tasks.report.leakage import Leak, LeakageReport
from qkv.tasks.report.learning_curve import CurvePoint, Gain, LearningCurve
from qkv.tasks.report.score import LengthGroup, Measured, ScoredRecord, ScoreReport
from qkv.train.run.curves import RunCurves

HOSTILE = "</script><img src=x onerror=alert(1)>"
SECTIONS = ["next", "score", "training", "classes", "errors", "data", "curve"]


def make_report() -> RunReport:
    """A report with all parts."""
    wrong = ScoredRecord("valid.tsv:3", f"a text {HOSTILE}", "bad", "good", 0.0, 0.97, "bad")
    classes = {
        name: {"f1": 0.8, "precision": 0.9, "recall": 0.7, "expected": 50, "predicted": 40} for name in ("good", "bad")
    }
    score = ScoreReport(
        "accuracy",
        Measured("model", 0.85, (0.8, 0.9)),
        (Measured("most frequent class", 0.5, (0.4, 0.6)), Measured("TF-IDF + linear SVM", 0.82)),
        Measured("training", 0.99),
        100,
        100,
        classes=classes,
        confusion={"good": {"good": 40, "bad": 10}, "bad": {"bad": 45, "good": 5}},
        lengths=(LengthGroup(1, 5, 50, 0.9), LengthGroup(6, 40, 50, 0.8)),
    )
    steps = [float(step) for step in range(10, 110, 10)]
    return RunReport(
        folder=f"runs/{HOSTILE}",
        task="classify",
        data_name="validation data (valid.tsv)",
        advice=(
            Advice("lr", "Lower the learning rate", "It rose.", ("train.lr=1e-4",), "qkv train " + "long-name/" * 30),
        ),
        score=score,
        curve_verdict=CurveVerdict(
            "settled", "the training loss fell from 1 to 0.1, and the validation loss settled at 0.2"
        ),
        curves=RunCurves(
            "run", [(step, 10 / step) for step in steps], [], {"loss": [(step, 12 / step) for step in steps]}
        ),
        errors=ErrorReport(15, (wrong,), (wrong,), (wrong,), 6, 50),
        leakage=LeakageReport(
            100, 900, True, {0: Leak("valid.tsv:1", "train.tsv:7", HOSTILE, HOSTILE, 1.0)}, [("text", "good", "bad")]
        ),
        data=RecordCounts(900, 9000, 20, 0, 0, 3, 64, 128),
        learning_curve=LearningCurve(
            "accuracy",
            "TF-IDF + linear SVM",
            (CurvePoint(100, 0.7), CurvePoint(200, 0.75), CurvePoint(400, 0.79)),
            Gain(0.02, (0.015, 0.025), (0.01, 0.03)),
            2.0,
        ),
        notes=("a note",),
    )


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with open_browser() as running:
        yield running


@pytest.mark.parametrize(("scheme", "width"), [("light", 1280), ("dark", 360)])
def test_all_sections_are_drawn_and_accessible(browser: Any, tmp_path: Path, scheme: str, width: int) -> None:
    file = tmp_path / "report.html"
    make_report().save(file)
    page = browser.new_context(color_scheme=scheme, viewport={"width": width, "height": 800}).new_page()
    errors: list[str] = []
    requests: list[str] = []
    page.on("console", lambda message: errors.append(message.text) if message.type == "error" else None)
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.on("request", lambda request: requests.append(request.url))
    page.goto(file.as_uri())
    page.wait_for_selector("#report[data-ready]", state="attached")
    assert [section.get_attribute("id") for section in page.query_selector_all("section")] == SECTIONS
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert page.locator("svg[role=img]").count() == 2
    assert page.locator("img").count() == 0
    text = page.inner_text("#report")
    assert "Accuracy on 100 records: the model is not clearly different from the best baseline (TF-IDF" in text
    shown = ("85.0 %", "80.0 % to 90.0 %", "Suspect labels", "+2.0 points, between +1.0 and +3.0", HOSTILE, "a note")
    assert all(words in text for words in shown)
    assert not errors
    assert requests == [file.as_uri()]
    assert not find_axe_errors(page)


def test_a_report_with_few_parts_has_few_sections(browser: Any, tmp_path: Path) -> None:
    verdict = CurveVerdict("unknown", "too few steps were logged to judge the training")
    report = RunReport(
        folder="run", task="language", data_name="test data", advice=(), curve_verdict=verdict, curves=RunCurves("run")
    )
    report.save(tmp_path / "new" / "report.html")
    page = browser.new_page()
    page.goto((tmp_path / "new" / "report.html").as_uri())
    page.wait_for_selector("#report[data-ready]", state="attached")
    assert [section.get_attribute("id") for section in page.query_selector_all("section")] == ["next", "training"]
    assert "Nothing stands out" in page.inner_text("#next")
