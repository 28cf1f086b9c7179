"""What `qkv data` shows is true of the file: counts, lengths, padding, first rows, problems."""

import io
import json
from collections import Counter

import numpy as np
import pytest
from data_fakes import write
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from qkv.data.dataset_stats import DatasetStats, compute_stats, length_stats
from qkv.data.readers import DataFiles, ReadOptions
from qkv.errors import QkvError
from qkv.render.console import escape_controls
from qkv.render.dataset_stats import print_dataset_stats


class Words:
    """Words are tokens."""

    def encode_batch(self, texts):
        return [[0] * len(text.split(" ")) for text in texts]

    def encode_with_offsets(self, text):
        spans, place = [], 0
        for word in text.split(" "):
            spans.append((place, place + len(word)))
            place += len(word) + 1
        return [0] * len(spans), spans


def shown(found: DatasetStats) -> str:
    out = io.StringIO()
    print_dataset_stats(found, Console(file=out, width=120))
    return out.getvalue()


@given(st.lists(st.integers(0, 300), min_size=1, max_size=200))
def test_statistics_from_counts_are_those_of_the_lengths(lengths):
    found = length_stats(Counter(lengths))
    assert found is not None
    assert (found.total, found.min, found.max) == (sum(lengths), min(lengths), max(lengths))
    assert found.mean == pytest.approx(np.mean(lengths))
    assert found.median == int(np.quantile(lengths, 0.5, method="inverted_cdf"))
    assert found.p95 == int(np.quantile(lengths, 0.95, method="inverted_cdf"))
    for begin, end, count in found.bins:
        assert count == sum(begin <= length <= end for length in lengths)
    assert sum(count for _, _, count in found.bins) == len(lengths)
    assert len(found.bins) <= 12


def test_a_table_with_a_label(tmp_path):
    rows = "".join(f"text number {n} is here,{'good' if n % 3 else 'bad'}\n" for n in range(300))
    found = compute_stats(DataFiles(write(tmp_path, "a.csv", "text,mood\n" + rows)), tokenizer=Words())
    text, mood = found.fields
    assert (found.examples, found.complete, found.unit) == (300, True, "tokens")
    assert (text.value_type, text.tokens.median, text.characters.max) == ("text", 5, 23)
    assert (mood.value_type, mood.values) == ("label", {"good": 200, "bad": 100})
    assert found.padding.fields == ("text",)
    assert found.previews[0].tokens["text"] == ["text", "number", "0", "is", "here"]
    assert found.previews[0].location.endswith("a.csv:2")


def test_padding_is_that_of_the_batches(tmp_path):
    """Lengths 1, 3, 1, 3, two a batch: 8 tokens in 12 positions; no padding by length, or packed to 4."""
    path = write(tmp_path, "a.txt", "a\na b c\na\na b c\n")
    found = compute_stats(DataFiles(path), tokenizer=Words(), max_length=4, batch_size=2).padding
    assert found.unsorted == pytest.approx(1 - 8 / 12)
    assert (found.by_length, found.packed, found.too_long) == (0, 0, 0)


def test_a_text_longer_than_a_sequence_is_counted(tmp_path):
    found = compute_stats(
        DataFiles(write(tmp_path, "a.txt", "a b c d e\na b\n")), tokenizer=Words(), max_length=4, batch_size=2
    ).padding
    assert found.too_long == 1
    assert found.packed == pytest.approx(1 - 7 / 8)


def test_pairs_are_packed_in_sequences_of_proportional_lengths(tmp_path):
    english = "".join("a " * (n % 7) + f"a{n}\n" for n in range(500))
    french = "".join("b " * (2 * (n % 7) + 1) + f"b{n}\n" for n in range(500))
    files = DataFiles([write(tmp_path, "t.en", english), write(tmp_path, "t.fr", french)])
    found = compute_stats(files, tokenizer=Words(), max_length=64)
    assert found.padding.sequence_lengths == (32, 64)
    assert found.padding.packed < 0.06 < found.padding.unsorted
    assert found.files[0].format == "aligned"


def test_tags_are_counted_one_by_one(tmp_path):
    sentences = "".join(f"Ada{n} B-PER\nwrote{n} O\nit{n} O\n\n" for n in range(50))
    found = compute_stats(DataFiles(write(tmp_path, "a.conll", sentences)))
    assert [(one.value_type, one.values) for one in found.fields] == [("texts", {}), ("tags", {"O": 100, "B-PER": 50})]
    assert found.padding.fields == ("tokens",)


def test_a_limit_looks_at_the_first_and_says_so(tmp_path):
    found = compute_stats(DataFiles(write(tmp_path, "a.txt", "a\n" * 100)), max_examples=10)
    assert (found.examples, found.complete) == (10, False)
    assert "only the first ones were read" in shown(found)


def test_problems_are_shown_and_do_not_stop_it(tmp_path):
    path = write(tmp_path, "a.jsonl", '{"text": "hello"}\nbroken\n')
    found = compute_stats(DataFiles(path))
    assert (found.examples, found.problems.num_invalid) == (1, 1)
    assert f"{path}:2: Expecting value" in shown(found).replace("\n", "")
    with pytest.raises(QkvError, match="no usable records"):
        compute_stats(DataFiles(write(tmp_path, "b.jsonl", "broken\n")))


def test_everything_is_json(tmp_path):
    row = {"id": 3, "turns": [{"role": "user", "content": "hi there"}], "score": 0.5, "empty": None, "list": [1, 2]}
    found = compute_stats(DataFiles(write(tmp_path, "a.jsonl", json.dumps(row) + "\n")), tokenizer=Words())
    found_json = json.loads(json.dumps(found.to_dict()))
    assert found_json["examples"] == 1
    assert [one["value_type"] for one in found_json["fields"]] == ["number", "list", "number", "other", "list"]
    assert found_json["problems"]["num_invalid"] == 0
    assert found_json["unit"] == "tokens"


def test_the_printed_statistics_have_all_findings(tmp_path):
    rows = "".join(f"{'word ' * (n % 20)}end\t{n % 2}\n" for n in range(400))
    text = shown(
        compute_stats(DataFiles(write(tmp_path, "a.tsv", rows), options=ReadOptions(header=False)), tokenizer=Words())
    )
    for part in (
        "a.tsv",
        "tsv",
        "400 examples",
        "2 labels",
        "packed into sequences of 512 tokens",
        "all records can be used",
    ):
        assert part in text


def test_a_users_text_cannot_control_the_terminal(tmp_path):
    path = write(tmp_path, "a.txt", "\x1b[2J[bold red]wiped[/] \u202etxet\n")
    text = shown(compute_stats(DataFiles(path), tokenizer=Words()))
    assert "\x1b[2J" not in text
    assert "\u202e" not in text
    assert "␛[2J[bold red]wiped[/]" in text, "drawn, and not taken for markup"
    assert escape_controls("a\nb", keep="\n") == "a\nb"
