"""Tables in memory: every kind has the same rows, is trained on, evaluated and read like the file with these rows."""

import datetime
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import qkv
from qkv.data.tables import column_values, is_table, save_table, table_rows

ROWS = [{"text": f"a {kind} book {i}", "label": kind, "n": i} for i in range(12) for kind in ("fine", "bad")]


def pandas_frame() -> Any:
    return pytest.importorskip("pandas", reason="reads pandas frames").DataFrame(ROWS)


def polars_frame() -> Any:
    return pytest.importorskip("polars", reason="reads Polars frames").DataFrame(ROWS)


def arrow_table() -> Any:
    return pytest.importorskip("pyarrow", reason="reads Arrow tables").Table.from_pylist(ROWS)


def dataset() -> Any:
    return pytest.importorskip("datasets", reason="reads datasets").Dataset.from_list(ROWS)


def streamed_dataset() -> Any:
    datasets = pytest.importorskip("datasets", reason="reads datasets")
    return datasets.IterableDataset.from_generator(lambda: iter(ROWS))


KINDS: dict[str, Callable[[], Any]] = {
    "pandas": pandas_frame,
    "polars": polars_frame,
    "lazy polars": lambda: polars_frame().lazy(),
    "arrow": arrow_table,
    "record batches": lambda: arrow_table().to_reader(max_chunksize=5),
    "dataset": dataset,
    "streamed dataset": streamed_dataset,
    "records": lambda: ROWS,
    "generator": lambda: (row for row in ROWS),
}


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_table_has_the_same_rows(kind: str, tmp_path: Path) -> None:
    table = KINDS[kind]()
    assert is_table(table)
    path = save_table(table, tmp_path)
    assert [json.loads(line) for line in path.read_text().splitlines()] == ROWS
    assert path == save_table(ROWS, tmp_path)
    assert [*tmp_path.iterdir()] == [path]


def test_missing_values_and_dates() -> None:
    pandas = pytest.importorskip("pandas", reason="reads pandas frames")
    frame = pandas.DataFrame({"a": ["x", None], "b": [1.5, float("nan")], "c": [pandas.Timestamp(0), pandas.NaT]})
    assert len([*table_rows(frame)]) == 2
    rows = [json.loads(line) for line in save_table(frame, Path("tables")).read_text().splitlines()]
    assert rows == [{"a": "x", "b": 1.5, "c": "1970-01-01 00:00:00"}, {}]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QKV_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("kind", ["records", "arrow", "polars"])
def test_a_model_is_trained_and_evaluated_on_a_table(kind: str, tmp_path: Path) -> None:
    (tmp_path / "recipe.toml").write_text(
        '[data]\ntrain = "other.csv"\nmax_length = 64\n[tokenizer]\nvocab_size = 300\n[model]\nwidth = 16\n'
        "layers = 1\nheads = 2\n"
        '[objective]\nkind = "classification"\n[train]\nsteps = 2\nbatch_tokens = 128\neval_examples = 4\n'
    )
    table = KINDS[kind]()
    model = qkv.train("recipe.toml", **{"data.train": table, "data.valid": ROWS[:6], "run": "runs/a"})
    assert model.evaluate(table).num_records == len(ROWS)
    assert {path.suffix for path in (tmp_path / "cache/tables").iterdir()} == {".jsonl"}
    texts = column_values(table["text"]) if kind == "arrow" else [row["text"] for row in ROWS]
    column = table["text"] if kind != "records" else texts
    assert [one.label for one in model.classify(column)] == [one.label for one in model.classify(texts)]


def test_other_values_are_no_tables() -> None:
    for value in ("a.tsv", Path("a.tsv"), ["a.tsv"], {"source": "a.en"}, None):
        assert not is_table(value)


@pytest.mark.parametrize(
    ("table", "words"),
    [
        ([], "no rows"),
        ([{"a": "x"}, "b"], "row 2 is str, not a record"),
        ([{"image": b"\x00"}], "row 1: image has bytes"),
    ],
)
def test_tables_that_cannot_be_read_say_why(table: Any, words: str, tmp_path: Path) -> None:
    with pytest.raises(qkv.QkvError, match=words):
        save_table(iter(table), tmp_path / "tables")
    assert not [*(tmp_path / "tables").iterdir()]


def test_values_become_json(tmp_path: Path) -> None:
    row = {"day": datetime.date(2026, 1, 2), "tags": ("B", "O"), "answers": {"text": ["x"]}}
    assert json.loads(save_table([row], tmp_path / "t").read_text()) == {
        "day": "2026-01-02", "tags": ["B", "O"], "answers": {"text": ["x"]},
    }  # fmt: skip
