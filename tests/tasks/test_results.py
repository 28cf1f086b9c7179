"""Results describe themselves: one line, a table, HTML and JSON show the same values."""

import json
from html.parser import HTMLParser
from typing import Any

import pytest

from qkv.tasks.results import Result
from qkv.tasks.run.generate import GeneratedText, WordLink
from qkv.tasks.verbs.answer import Answer
from qkv.tasks.verbs.classify import ClassPrediction, LabelsPrediction, ScorePrediction
from qkv.tasks.verbs.complete import Completion, Suggestion
from qkv.tasks.verbs.fill import FilledText
from qkv.tasks.verbs.tag import TaggedEntity, TaggedText, TaggedWord

EVIL = "<script>alert(1)</script> & co"
TAGGED = TaggedText(EVIL, [TaggedWord(EVIL[:8], "B-X", 0.9, 0, 8)], [TaggedEntity(EVIL[:8], "<X>", 0.9, 0, 8)])
RESULTS: list[Result] = [
    ClassPrediction(EVIL, 0.9312, {EVIL: 0.9312, "b": 0.0688}),
    LabelsPrediction([EVIL], {EVIL: 0.9}),
    ScorePrediction(0.25),
    TAGGED,
    Answer("co", len(EVIL) - 2, len(EVIL), 1.5, 0.75, [Answer("", -1, -1, 0.0, 0.2)], context=EVIL),
    FilledText(EVIL, [{EVIL: 0.5, "b": 0.25}, {"c": 0.5}]),
    GeneratedText(
        "x",
        EVIL,
        -1.0,
        "end",
        [1],
        [GeneratedText("x", "other", -2.0, "end", [2])],
        alignment=[WordLink("x", "<b>", 0, 1, 0, 3, 0.5)],
    ),
    Completion(EVIL, [Suggestion("<i>", 0.5)]),
]


class Tags(HTMLParser):
    """Collects the tags of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.found.add(tag)


@pytest.mark.parametrize("result", RESULTS, ids=lambda result: type(result).__name__)
def test_every_result_prints_and_escapes(result: Result) -> None:
    page = result._repr_html_()
    assert Tags(page).found <= {"div", "p", "table", "tr", "td", "mark", "small"}
    assert "http" not in page
    assert len(result.summary().splitlines()) == 1
    assert str(result).splitlines()[0] == result.body().splitlines()[0]
    assert repr(result).startswith(f"<{type(result).__name__}: ")
    assert json.loads(json.dumps(result.to_dict())) == result.to_dict()


def test_a_table_is_aligned_and_cut() -> None:
    many = {f"class {number}": 0.05 for number in range(12)}
    lines = str(ClassPrediction("猫", 0.4, {"猫": 0.4, **many})).splitlines()
    assert lines[0] == "猫\t0.4000"
    assert lines[1:3] == ["  猫       0.4000", "  class 0  0.0500"]
    assert lines[-1] == "  … and 3 more"
    assert len(lines) == 12


def test_html_marks_the_entity_and_the_answer() -> None:
    assert "<mark>&lt;script&gt; <small>&lt;X&gt;</small></mark>" in TAGGED._repr_html_()
    answer = RESULTS[4]
    assert "&amp; <mark>co <small>0.75</small></mark>" in answer._repr_html_()
    assert str(Answer("", -1, -1, 0.0)).startswith("(no answer)")
    assert repr(Answer("", -1, -1, 0.0)) == "<Answer: (no answer)>"


def test_what_was_not_asked_for_is_not_in_the_json() -> None:
    assert set(GeneratedText("a", "b", -1.0, "end", [1]).to_dict()) == {"text", "score", "finish_reason", "ids"}
    assert {"alternatives", "alignment"} <= set(RESULTS[6].to_dict())
    assert "context" not in RESULTS[4].to_dict()
