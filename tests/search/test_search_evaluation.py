"""An index evaluated by relevance judgements, from Python and from files of several formats."""

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from search_models import make_embedder

import qkv
from qkv.errors import UsageError
from qkv.search import evaluate, read_judged_queries

TEXTS = {"deep/fox.md": "the quick brown fox", "dog.txt": "the lazy dog sleeps", "sea.txt": "a warm house by the sea"}
QUERIES = {"q1": "brown fox", "q2": "the lazy dog", "q3": "house"}
JUDGEMENTS = {"q1": {"fox": 2.0}, "q2": {"dog.txt": 1.0, "fox": 0.0}, "q3": {"sea": 1.0}}


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> qkv.Index:
    folder = tmp_path_factory.mktemp("search")
    for name, text in TEXTS.items():
        (folder / "texts" / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / "texts" / name).write_text(text, encoding="utf-8")
    make_embedder().save(folder / "model")
    return qkv.Index.build(folder / "texts", model=folder / "model", out=folder / "index")


def test_names_of_many_files_are_not_compared_in_pairs(monkeypatch: pytest.MonkeyPatch) -> None:
    compared = []

    class Stem(str):
        __hash__ = str.__hash__

        def __eq__(self, other: object) -> bool:
            compared.append(other)
            return str.__eq__(self, other)

    def make_path(file: str) -> SimpleNamespace:
        stem = Stem(file.removesuffix(".txt"))
        return SimpleNamespace(stem=stem, name=Stem(file), with_suffix=lambda _: stem)

    monkeypatch.setattr(evaluate, "PurePosixPath", make_path)
    assert evaluate.known_files([f"{i}.txt" for i in range(300)])["7"] == "7.txt"
    assert len(compared) < 3000


def test_files_have_short_names_unless_several_files_have_the_same() -> None:
    known = evaluate.known_files(["0/1.txt", "0/2.txt", "1/2.txt", "fox.md", "deep/fox.md", "a/b", "b/b.md"])
    assert {name for name, file in known.items() if file == "0/1.txt"} == {"0/1.txt", "0/1", "1.txt", "1"}
    assert (known["0/2"], known["1/2"], known["a/b"], known["b.md"]) == ("0/2.txt", "1/2.txt", "a/b", "b/b.md")
    assert (known["fox.md"], known["deep/fox.md"]) == ("fox.md", "deep/fox.md")
    assert not {"2", "2.txt", "fox", "b"} & known.keys()


def test_words_find_what_was_judged_relevant(index: qkv.Index) -> None:
    found = index.evaluate(QUERIES, JUDGEMENTS)
    assert (found.num_queries, found.notes) == (3, ())
    assert set(found.metrics) == {"fused", "dense", "bm25"}
    assert found.metrics["bm25"] == {
        "ndcg@10": 1.0,
        "mean_average_precision": 1.0,
        "recall@100": 1.0,
        "mean_reciprocal_rank@10": 1.0,
    }
    assert found.intervals["bm25"]["ndcg@10"] == (pytest.approx(0.438, abs=1e-3), 1.0)  # of three queries
    wrong = index.evaluate(QUERIES, {"q1": {"dog": 1.0}, "q2": {"sea": 1.0}}, methods=["bm25"])  # a negative control
    assert wrong.metrics["bm25"]["ndcg@10"] < 1
    assert wrong.notes == ("skipped 1 queries without a text, or without a relevant file",)


def test_files_that_are_not_in_the_index_count_as_not_found(index: qkv.Index) -> None:
    found = index.evaluate(QUERIES, {"q1": {"fox": 1.0, "gone": 1.0}}, methods=["bm25"])
    assert found.metrics["bm25"]["recall@100"] == 0.5
    assert "1 judged files are not in the index, for example 'gone'" in found.notes[1]
    with pytest.raises(UsageError, match="none of the judged files is in the index, for example 'gone'"):
        index.evaluate(QUERIES, {"q1": {"gone": 1.0}})
    with pytest.raises(UsageError, match="none of the 3 queries has a relevant file"):
        index.evaluate(QUERIES, {"q1": {"fox": 0.0}})


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("ndgc@5", "did you mean 'ndcg@5'"),
        ("nonsense", "known: map, mean_average_precision, mean_reciprocal_rank@k, mrr@k, ndcg@k, recall@k"),
        ("map@5", "write 'map'"),
        ("recall", "must be from 1 to 1,000; for example, 'recall@10'"),
        ("recall@0", "must be from 1 to 1,000"),
        ("recall@2000", "must be from 1 to 1,000"),
    ],
)
def test_unknown_metrics_are_refused(index: qkv.Index, name: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        index.evaluate(QUERIES, JUDGEMENTS, metrics=[name])


def test_cutoff_of_a_metric_is_used(index: qkv.Index) -> None:
    judgements = {"q1": {"fox": 1.0, "dog": 1.0, "sea": 1.0}}
    names = ["recall@1", "recall@2", "map", "MRR@3"]
    found = index.evaluate({"q1": "the"}, judgements, methods=["bm25"], metrics=names)
    assert found.metrics["bm25"] == {
        "recall@1": 1 / 3,
        "recall@2": 2 / 3,
        "mean_average_precision": 1.0,
        "mean_reciprocal_rank@3": 1.0,
    }
    one = index.evaluate({"q1": "the"}, judgements, methods="bm25", metrics="recall@1")
    assert one.metrics == {"bm25": {"recall@1": 1 / 3}}


@pytest.mark.parametrize(
    ("queries", "judgements", "metrics", "message"),
    [
        (5, JUDGEMENTS, "map", r"queries must map ids to texts.*got 5 \(int\)"),
        (QUERIES, [], "map", r"judgements must map ids to files.*got \[\] \(list\)"),
        (QUERIES, {"q1": ["fox"]}, "map", r"the judgements of query 'q1' must map files to their relevance.*\['fox'\]"),
        (QUERIES, {"q1": {"fox": "x"}}, "map", r"query 'q1', file 'fox': the relevance is 'x' \(str\), but"),
        (QUERIES, JUDGEMENTS, 5, r"metrics must be a name.*got 5 \(int\)"),
        (QUERIES, JUDGEMENTS, [5], "metric = '5' is not a search metric"),
    ],
)
def test_values_of_other_types_are_refused(
    index: qkv.Index, queries: Any, judgements: Any, metrics: Any, message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        index.evaluate(queries, judgements, metrics=metrics)


def test_differences_are_paired(index: qkv.Index) -> None:
    found = index.evaluate(QUERIES, JUDGEMENTS, resamples=100)
    wrong = index.evaluate(QUERIES, {"q1": {"dog": 1.0}, "q2": {"sea": 1.0}, "q3": {"fox": 1.0}}, resamples=100)
    assert set(found.fused_differences) == {"dense", "bm25"}
    gain = found.fused_differences["dense"]["ndcg@10"]
    assert gain.value == found.metrics["fused"]["ndcg@10"] - found.metrics["dense"]["ndcg@10"]
    differences = found.compare(replace(wrong, data_hash=found.data_hash), resamples=100)  # as if an index were bad
    assert set(differences) == {"fused", "dense", "bm25"}
    assert differences["bm25"]["mean_average_precision"].interval[1] < 0
    same = found.compare(index.evaluate(QUERIES, JUDGEMENTS), resamples=100)
    assert {one.interval for scores in same.values() for one in scores.values()} == {(0.0, 0.0)}  # paired


def test_evaluations_of_other_queries_or_judgements_are_not_compared(index: qkv.Index) -> None:
    found = index.evaluate(QUERIES, JUDGEMENTS, methods=["bm25"])
    others = [
        index.evaluate(QUERIES | {"q1": "fox"}, JUDGEMENTS, methods=["bm25"]),
        index.evaluate(QUERIES, JUDGEMENTS | {"q1": {"fox": 1.0}}, methods=["bm25"]),
        index.evaluate(QUERIES, dict(reversed(JUDGEMENTS.items())), methods=["bm25"]),
    ]
    for other in others:
        with pytest.raises(UsageError, match="the evaluations are of different data"):
            found.compare(other)
    unjudged = QUERIES | {"q4": "a query that is left out"}
    assert found.compare(index.evaluate(unjudged, JUDGEMENTS, methods=["bm25"]))
    with pytest.raises(UsageError, match="no metric in common"):
        found.compare(index.evaluate(QUERIES, JUDGEMENTS, methods=["dense"]))
    with pytest.raises(UsageError, match="no metric in common"):
        found.compare(index.evaluate(QUERIES, JUDGEMENTS, methods=["bm25"], metrics=["ndcg@5"]))
    with pytest.raises(UsageError, match=r"compare: got 5 \(int\)"):
        found.compare(5)  # type: ignore[arg-type]


FILES = {
    "judged.tsv": "query\tdocument\trelevance\nbrown fox\tfox\t2\nthe lazy dog\tdog.txt\t1\nthe lazy dog\tfox\t0\n",
    "trec.txt": "q1 0 fox 2\nq2 0 dog.txt 1\nq2 0 fox 0\n",
    "beir.tsv": "query-id\tcorpus-id\tscore\nq1\tfox\t2\nq2\tdog.txt\t1\nq2\tfox\t0\n",
    "numbers.tsv": "1\tfox\t2\n2\tdog.txt\t1\n2\tfox\t0\n",
}


@pytest.mark.parametrize("name", FILES)
def test_judgements_are_read_from_the_usual_formats(name: str, tmp_path: Path) -> None:
    file = tmp_path / name
    file.write_text(FILES[name], encoding="utf-8")
    if name == "judged.tsv":
        queries, judged = read_judged_queries(file)
        assert queries == {"brown fox": "brown fox", "the lazy dog": "the lazy dog"}
    else:
        first = "1" if name == "numbers.tsv" else "q1"
        listed = [{"_id": first, "text": "brown fox"}, {"_id": first.replace("1", "2"), "text": "the lazy dog"}]
        (tmp_path / "queries.jsonl").write_text("".join(json.dumps(one) + "\n" for one in listed))
        queries, judged = read_judged_queries(file, tmp_path / "queries.jsonl")
        assert queries == {first: "brown fox", first.replace("1", "2"): "the lazy dog"}
    assert list(judged) == list(queries)
    assert list(judged.values()) == [{"fox": 2.0}, {"dog.txt": 1.0, "fox": 0.0}]


def test_the_command_prints_all_methods(
    index: qkv.Index, tmp_path: Path, run_qkv: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    Path("judged.tsv").write_text(FILES["judged.tsv"])
    Path("trec.txt").write_text(FILES["trec.txt"])
    Path("queries.tsv").write_text("id\ttext\nq1\tbrown fox\nq2\tthe lazy dog\n")
    out = run_qkv(["eval", str(index.folder), "judged.tsv"]).out
    assert all(word in out for word in ("2 queries", "bm25", "fused", "ndcg@10", "95 % interval"))
    command = ["eval", str(index.folder), "queries=queries.tsv", "judgements=trec.txt", "--json"]
    values = json.loads(run_qkv(command).out)
    assert values["metrics"]["bm25"]["ndcg@10"] == 1.0
    assert values["queries"] == 2
    assert "queries=queries.tsv judgements=qrels.tsv" in run_qkv(["eval", str(index.folder)], 2).err


def test_the_command_compares_two_indexes_by_the_chosen_metrics(
    index: qkv.Index, tmp_path: Path, run_qkv: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    Path("judged.tsv").write_text(FILES["judged.tsv"])
    Path("texts").mkdir()
    for name in ("fox.md", "dog.txt"):
        Path("texts", name).write_text("the house by the sea")
    make_embedder().save("model")
    qkv.Index.build("texts", model="model", out="other.index")
    command = ["eval", str(index.folder), "other.index", "judged.tsv", "--metric", "recall@1", "--metric", "map"]
    values = json.loads(run_qkv([*command, "--json"]).out)
    assert [one["index"] for one in values["indexes"]] == [str(index.folder), "other.index"]
    assert set(values["indexes"][0]["metrics"]["bm25"]) == {"recall@1", "mean_average_precision"}
    assert set(values["indexes"][0]["fused_differences"]) == {"dense", "bm25"}
    one, other = (one["metrics"]["bm25"]["recall@1"] for one in values["indexes"])
    assert values["differences"]["bm25"]["recall@1"]["value"] == other - one < 0
    out = run_qkv(command).out
    assert out.count("B − A") == 6  # two metrics, three methods
    assert "ndcg" not in out
    assert run_qkv(["eval", str(index.folder), "judged.tsv"]).out.count("fused − bm25") == 4
    assert "did you mean 'ndcg@5'?" in run_qkv(["eval", str(index.folder), "judged.tsv", "--metric", "ndgc@5"], 2).err
    assert "at most 2" in run_qkv(["eval", str(index.folder), "other.index", "other.index", "judged.tsv"], 2).err


def test_options_of_models_are_refused(index: qkv.Index, run_qkv: Any) -> None:
    options = ["--beam", "5", "--columns", "query=q", "--samples", "9", "--no-baseline"]
    captured = run_qkv(["eval", str(index.folder), "judged.tsv", *options], 2)
    assert "does not use --columns, --beam, --samples, --no-baseline; leave them out" in captured.err
