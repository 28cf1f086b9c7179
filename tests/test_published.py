"""bench/published.py: a row runs from compressed files to scores."""

import gzip
import json
import math
import sys
from pathlib import Path

import pytest

BENCH = Path(__file__).parents[1] / "bench"


@pytest.fixture
def published(monkeypatch):
    """The script as a module, with what it imports."""
    monkeypatch.syspath_prepend(str(BENCH))
    import published

    yield published
    for name in [name for name in sys.modules if name == "published" or name.split(".")[0] == "rows"]:
        monkeypatch.delitem(sys.modules, name)


def run_script(published, monkeypatch, *words):
    monkeypatch.setattr(sys, "argv", ["published.py", *map(str, words)])
    published.main()


def test_a_row_runs_from_compressed_files_to_scores(published, monkeypatch, tmp_path):
    names = [a + b + c for a in "bdkm" for b in "aeiou" for c in ("n", "ra", "lia")]
    (tmp_path / "data/makemore_names").mkdir(parents=True)
    with gzip.open(tmp_path / "data/makemore_names/names.txt.gz", "wt") as file:
        file.write("\n".join(names) + "\n")
    out = tmp_path / "out"
    words = ["makemore_names", "--data", tmp_path / "data", "--out", out, "--seeds", "4", "--device", "cpu", "--quick"]
    run_script(published, monkeypatch, *words)
    (result,) = json.loads((out / "makemore_names.json").read_text())
    loss = result["scores"]["loss"]
    assert loss["low"] < loss["value"] < loss["high"]
    assert result["steps"] == 3
    assert not (out / "makemore_names-4/run/checkpoints").exists()

    lines = (out / "makemore_names-4/predictions.jsonl").read_text().splitlines()
    changed = [json.dumps({**json.loads(line), "nats": 2.0, "tokens": 1}) for line in lines]
    (out / "makemore_names-4/predictions.jsonl").write_text("\n".join(changed) + "\n")
    run_script(published, monkeypatch, "--score", out)
    (result,) = json.loads((out / "makemore_names.json").read_text())
    assert result["scores"]["loss"] == {"value": 2.0, "low": 2.0, "high": 2.0}


def test_every_row_states_its_data_the_published_figure_and_the_goal(published):
    for name in published.expand(published.list_modules()):
        module, _ = published.find_row(name)
        assert all(word in module.__doc__ for word in ("Data:", "Published:", "Goal:")), name


def test_an_unknown_row_is_refused(published):
    with pytest.raises(SystemExit, match="no such row"):
        published.expand(["makemore"])
    with pytest.raises(SystemExit, match="no such variant"):
        published.expand(["multi30k:klingon"])


CLASSES = [{"part": "dev", "label": "1", "prediction": "1", "probability": 0.9}] * 3
WRONG = {"part": "dev", "label": "0", "prediction": "1", "probability": 0.6}
SCORED = {
    "sst": ([*CLASSES, WRONG], "dev", 75.0),
    "cola": ([*CLASSES, {**WRONG, "prediction": "0"}], "dev_matthews", 100.0),
    "atis": ([{"tags": ["B-a", "I-a", "O"], "prediction": ["B-a", "O", "O"]}], "slot_f1", 0.0),
    "ud_english_ewt": ([{"part": "dev", "tags": ["NOUN", "VERB"], "prediction": ["PROPN", "VERB"]}], "dev", 50.0),
    "stsb": ([{"part": "dev", "score": i / 5, "prediction": i**3} for i in range(5)], "dev_spearman", 1.0),
    "cranfield": ([{"part": "fused", "prediction": [3, 1], "relevant": [3, 4]}], "fused", 1 / (1 + 1 / math.log2(3))),
    "squadshifts": (
        [{"part": "reddit", "answers": ["a cat"], "prediction": "", "forced": "the cat"}],
        "reddit, answerable, answer_exact_match",
        100.0,
    ),
}


@pytest.mark.parametrize("row", SCORED)
def test_a_row_scores_its_predictions(published, row):
    lines, name, value = SCORED[row]
    module, _ = published.find_row(row)
    assert module.score(lines)[name]["value"] == pytest.approx(value)


def test_the_threshold_of_clinc150_rejects_requests_out_of_scope(published):
    module, _ = published.find_row("clinc150")
    inside = [{"label": "a", "prediction": "a", "probability": p, "threshold": 0.75} for p in (0.9, 0.8, 0.7)]
    outside = [{"label": "oos", "prediction": "a", "probability": p, "threshold": 0.75} for p in (0.9, 0.2)]
    scores = module.score([*inside, *outside])
    assert scores["in_scope"]["value"] == 100.0
    assert scores["in_scope_with_threshold"]["value"] == pytest.approx(200 / 3)
    assert scores["out_of_scope_recall"]["value"] == 50.0
