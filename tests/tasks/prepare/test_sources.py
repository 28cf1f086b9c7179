"""Parts of the data, samples of records, and several sets of examples as one."""

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from prepare_samples import sample_recipe

from qkv.data import FileLocation, InMemoryExamples, Problems, Record
from qkv.errors import UsageError
from qkv.tasks.prepare.columns import match_columns
from qkv.tasks.prepare.joined_examples import JoinedExamples
from qkv.tasks.prepare.sources import cache_root, open_source, open_sources, sample_records
from qkv.train.recipe.schema import DataSection, Recipe


def numbered(count: int) -> Iterator[Record]:
    return (Record({"n": n}, FileLocation("made", n)) for n in range(count))


@given(st.integers(0, 400), st.integers(0, 60))
def test_samples_are_as_many_as_asked_for_in_order_and_the_same_each_time(count: int, wanted: int) -> None:
    found = [record.fields["n"] for record in sample_records(numbered(count), wanted)]
    assert found == sorted(set(found))
    assert len(found) == min(count, wanted)
    assert found == [record.fields["n"] for record in sample_records(numbered(count), wanted)]


def test_samples_are_spread_over_all_of_the_data() -> None:
    found = np.array([record.fields["n"] for record in sample_records(numbered(10_000), 200)])
    assert all(((found >= start) & (found < start + 2000)).sum() > 20 for start in range(0, 10_000, 2000))


def test_a_larger_sample_holds_the_smaller_one() -> None:
    few, many = ({r.fields["n"] for r in sample_records(numbered(1000), count)} for count in (20, 50))
    assert few < many


EXAMPLES = st.lists(st.lists(st.integers(0, 99), max_size=5), min_size=1, max_size=6)


@given(st.lists(EXAMPLES, min_size=1, max_size=3), st.data())
def test_joined_examples_are_the_lists_end_to_end(parts: list[list[list[int]]], data: st.DataObject) -> None:
    joined = JoinedExamples([InMemoryExamples([{"ids": ids} for ids in part]) for part in parts])
    flat = [ids for part in parts for ids in part]
    assert len(joined) == len(flat)
    assert joined.lengths("ids").tolist() == [len(ids) for ids in flat]
    assert [joined[n]["ids"].tolist() for n in range(len(flat))] == flat
    indices = data.draw(st.lists(st.integers(0, len(flat) - 1), max_size=8))
    starts = [data.draw(st.integers(0, len(flat[n]))) for n in indices]
    counts = [data.draw(st.integers(0, len(flat[n]) - s)) for n, s in zip(indices, starts, strict=True)]
    found, offsets = joined.gather("ids", *(np.array(a, np.int64) for a in (indices, starts, counts)))
    expected = [flat[n][s : s + c] for n, s, c in zip(indices, starts, counts, strict=True)]
    assert found.tolist() == [one for part in expected for one in part]
    assert offsets.tolist() == np.cumsum([0, *counts]).tolist()


def test_the_cache_goes_where_it_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert cache_root(DataSection(cache_dir=str(tmp_path))) == tmp_path
    monkeypatch.setenv("QKV_CACHE", str(tmp_path / "env"))
    assert cache_root(DataSection()) == tmp_path / "env"
    assert cache_root(DataSection(cache_dir=str(tmp_path))) == tmp_path
    monkeypatch.delenv("QKV_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    monkeypatch.setattr("sys.platform", "linux")
    assert cache_root(DataSection()) == tmp_path / "xdg" / "qkv"


def test_a_name_of_the_objective_goes_before_one_that_is_only_known() -> None:
    assert match_columns("seq2seq", ["text", "source", "target"], "x") == {"source": "source", "target": "target"}
    assert match_columns("classification", ["score", "label", "text"], "x") == {"text": "text", "label": "label"}


def test_no_column_is_taken_twice() -> None:
    with pytest.raises(UsageError, match="no column is recognised as the target"):
        match_columns("seq2seq", ["text", "id"], "x")


def test_a_record_without_a_field_is_counted_and_not_split_on(tmp_path: Path) -> None:
    (tmp_path / "some.jsonl").write_text('{"source": "a", "target": "b"}\n{"target": "c"}\n' * 3)
    sources = open_sources(sample_recipe(tmp_path, "seq2seq", "some.jsonl", data={"valid_fraction": 0.5}))
    problems = Problems(max_invalid_fraction=1)
    (part,) = sources.train.values()
    both = [record for one in (part, *sources.valid) for record in records_or_none(one, problems)]
    assert len(both) == 3
    assert problems.num_invalid == 2 * 3  # each side reads all of the file


def test_columns_are_those_of_most_records_and_not_of_the_first_alone(tmp_path: Path) -> None:
    first = ['{"text": "no label"}', '{"text": "a pair", "second": "b", "label": "x"}']
    others = ['{"text": "a", "label": "x"}', '{"text": "b", "label": "y"}'] * 5
    (tmp_path / "some.jsonl").write_text("\n".join([*first, *others]))
    sources = open_sources(sample_recipe(tmp_path, "classification", "some.jsonl", data={"valid_fraction": 0.0}))
    (part,) = sources.train.values()
    assert part.fields == {"text", "label"}, "an optional field of one record would lose all others"
    problems = Problems(max_invalid_fraction=1)
    assert len(list(part.records(problems))) == 11
    assert "some.jsonl:1: no field 'label'" in str(problems.summary())


@pytest.mark.parametrize("names", [("instruction", "input", "output"), ("prompt", "context", "completion")])
def test_an_instruction_and_its_response_are_a_chat(tmp_path: Path, names: tuple[str, str, str]) -> None:
    question, added, answer = names
    rows = [{question: "Add.", added: "1 and 2", answer: "3"}, {question: "Hello!", added: "", answer: "Hi."}]
    (tmp_path / "chats.json").write_text(json.dumps(rows))
    sources = open_sources(sample_recipe(tmp_path, "causal_lm", "chats.json", data={"valid_fraction": 0.0}))
    (part,) = sources.train.values()
    assert part.fields == {"messages"}
    chats = [record.fields["messages"] for record in part.records(Problems())]
    assert [[one["content"] for one in chat] for chat in chats] == [["Add.\n\n1 and 2", "3"], ["Hello!", "Hi."]]
    assert [one["role"] for one in chats[0]] == ["user", "assistant"]


def test_some_instructions_have_an_input(tmp_path: Path) -> None:
    rows: list[dict[str, str | None]] = [{"instruction": "Add.", "input": "1 and 2", "output": "3"}]
    rows += [{"instruction": "Hello!", "input": None, "output": "Hi."}, {"instruction": "Bye!", "output": "Bye."}]
    rows += [{"instruction": "Nothing", "output": None}]
    (tmp_path / "chats.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    sources = open_sources(sample_recipe(tmp_path, "causal_lm", "chats.jsonl", data={"valid_fraction": 0.0}))
    (part,) = sources.train.values()
    problems = Problems(max_invalid_fraction=1)
    found = [record.fields["messages"][0]["content"] for record in part.records(problems)]
    assert found == ["Add.\n\n1 and 2", "Hello!", "Bye!"]
    assert "no field 'output'" in str(problems.summary())


def test_only_files_with_lists_have_another_key_in_the_cache(tmp_path: Path) -> None:
    """A run on other files finds its data in the cache after an update, and can be resumed."""
    for name, source in (("texts", "a b"), ("lists", ["a", "b"])):
        (tmp_path / f"{name}.jsonl").write_text(json.dumps({"source": source, "target": "c"}) + "\n")
        files = open_source(Recipe(), DataSection(), str(tmp_path / f"{name}.jsonl"), "train").files  # type: ignore[union-attr]
        assert [record.fields["source"] for record in files.records(Problems())] == ["a b"]
        assert ("list_fields" in files.content_key(lambda path: "")) == (name == "lists")


def test_one_of_several_files_of_instructions_may_have_inputs(tmp_path: Path) -> None:
    row: dict[str, str] = {"instruction": "Add.", "output": "3"}
    (tmp_path / "a.jsonl").write_text(json.dumps(row | {"input": "1 and 2"}) + "\n")
    (tmp_path / "b.jsonl").write_text(json.dumps(row) + "\n")
    files = [str(tmp_path / name) for name in ("a.jsonl", "b.jsonl")]
    sources = open_sources(
        sample_recipe(tmp_path, "causal_lm", "a.jsonl", data={"train": files, "valid_fraction": 0.0})
    )
    (part,) = sources.train.values()
    found = [record.fields["messages"][0]["content"] for record in part.records(Problems())]
    assert found == ["Add.\n\n1 and 2", "Add."]


def test_a_prompt_without_a_response_is_no_chat() -> None:
    with pytest.raises(UsageError, match="no column is recognised as the response"):
        match_columns("causal_lm", ["prompt", "id"], "x")
    assert match_columns("causal_lm", ["text", "context", "answer"], "x") == {"text": "text"}


def records_or_none(part: object, problems: Problems) -> list[Record]:
    """The records of a side, which may be empty: three copies of one record are all on the same side."""
    from qkv.errors import QkvError

    try:
        return list(part.records(problems))  # type: ignore[attr-defined]
    except QkvError:
        return []
