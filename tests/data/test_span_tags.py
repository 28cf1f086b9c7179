"""Names and slots as spans of a text, as JSON has them."""

import json
from pathlib import Path
from typing import Any

import pytest

from qkv.data import DataFiles, Problems
from qkv.tasks.prepare.sources import open_sources
from qkv.tasks.starters.recipe import starter_recipe
from qkv.train.recipe.recipe_file import loads

WORDS, TAGS = ["Fly", "to", "New", "York", "!"], ["O", "O", "B-city", "I-city", "O"]


@pytest.mark.parametrize(
    "row",
    [
        {"text": "Fly to New York!", "entities": [{"start": 7, "end": 15, "label": "city"}]},
        {"text": "Fly to New York!", "label": [[7, 15, "city"]]},
        {"id": 3, "query": "Fly to New York!", "slots": {"city": "New York"}},
        {"data": [{"text": "Fly to "}, {"text": "New York", "entity": "city"}, {"text": "!"}]},
        {"text": "Fly to New York!", "intent": "fly", "entities": [{"from": 7, "to": 15, "entity": "city"}]},
    ],
)
def test_spans_become_tags_of_words(row: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "slots.jsonl").write_text(f"{json.dumps(row)}\n" * 3)
    recipe = loads(starter_recipe("tag", [str(tmp_path / "slots.jsonl")]))
    (source, *_) = open_sources(recipe).train.values()
    records = [record.fields for record in source.files.records(Problems())]
    assert records == [{"tokens": WORDS, "tags": TAGS}] * 3


@pytest.mark.parametrize(
    ("spans", "reason"),
    [
        ([[7, 99, "city"]], "outside of a text of 16 characters"),
        ([[7, 15, "city"], [9, 12, "x"]], "overlaps another"),
        ({"city": "Rome"}, "the text has no 'Rome', which is its city"),
        ([{"start": 7, "label": "city"}], "needs a start, an end and a label"),
    ],
)
def test_a_misplaced_span_is_an_invalid_record(spans: Any, reason: str, tmp_path: Path) -> None:
    rows = [{"tokens": "Fly to New York!", "tags": spans}, {"tokens": "Fly!", "tags": []}]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    problems = Problems(max_invalid_fraction=1)
    files = DataFiles(str(tmp_path / "a.jsonl"), word_fields=("tokens", "tags"))
    assert [one.fields for one in files.records(problems)] == [{"tokens": ["Fly", "!"], "tags": ["O", "O"]}]
    assert reason in str(problems.summary())
