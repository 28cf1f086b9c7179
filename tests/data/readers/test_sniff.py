"""Files whose names say less than their content: tables in text files, CoNLL in TSV files, tables without a header."""

import json

import pytest
from data_fakes import counts, fields_of, write

from qkv.data import Problems
from qkv.data.readers.delimited import _unique_names

CONLL = "EU\tB-ORG\nrejects\tO\n\nPeter\tB-PER\nBlackburn\tI-PER\n"


@pytest.mark.parametrize("name", ["ner.tsv", "ner.txt", "ner.tsv.gz"])
def test_words_with_tags_are_conll_whatever_the_name(tmp_path, name):
    import gzip

    path = tmp_path / name
    path.write_bytes(gzip.compress(CONLL.encode()) if name.endswith(".gz") else CONLL.encode())
    problems = Problems()
    assert fields_of(path, problems=problems) == [
        {"tokens": ["EU", "rejects"], "tags": ["B-ORG", "O"]},
        {"tokens": ["Peter", "Blackburn"], "tags": ["B-PER", "I-PER"]},
    ]
    assert "format" in counts(problems)
    assert "--format" in str(problems.summary())


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("a.txt", "text\tlabel\nfine\tyes\n", [{"text": "fine", "label": "yes"}]),
        ("a.txt", "text\tlabel\r\nfine\tyes\r\n", [{"text": "fine", "label": "yes"}]),
        ("a.txt", "one\ttab\nno tab\n", [{"text": "one\ttab"}, {"text": "no tab"}]),
        ("a.txt", "one\tline\n", [{"text": "one\tline"}]),
        ("a.txt", "plain\ntext\n", [{"text": "plain"}, {"text": "text"}]),
        # Sentences are no words with tags, and a blank line at the end is no border of sentences.
        ("a.tsv", "text\tlabel\n\nso it is\tyes\n", [{"text": "so it is", "label": "yes"}]),
        ("a.tsv", "text\tlabel\nfine\tyes\n\n", [{"text": "fine", "label": "yes"}]),
    ],
)
def test_a_table_is_recognised_by_its_tabs(tmp_path, name, text, expected):
    assert fields_of(write(tmp_path, name, text)) == expected


def test_a_format_that_is_given_decides(tmp_path):
    assert fields_of(write(tmp_path, "a.txt", "a\tb\nc\td\n"), format="text")[0] == {"text": "a\tb"}
    assert fields_of(write(tmp_path, "ner.tsv", CONLL), format="tsv", header=False)[0] == {"0": "EU", "1": "B-ORG"}


def test_the_first_file_of_a_folder_decides(tmp_path):
    write(tmp_path, "a.txt", "text\tlabel\nfine\tyes\n")
    write(tmp_path, "b.txt", "text\tlabel\nbad\tno\n")
    assert fields_of(tmp_path) == [{"text": "fine", "label": "yes"}, {"text": "bad", "label": "no"}]


@pytest.mark.parametrize(
    ("text", "has_header"),
    [
        ("A plane is taking off.\tAn air plane is taking off.\t5.000\nA man is playing.\tA dog runs.\t0.4\n", False),
        ("great movie\t1\nbad film\t0\n", False),
        ("sentence1\tsentence2\tscore\nA man is playing.\tA dog runs.\t0.4\n", True),
        ("How old are you?\tWhy do you ask?\n35\tI am only curious.\n", True),
        ("text\tlabel\ngood\tyes\n", True),
        ("great movie\tpos\nbad film\tneg\nfine\tpos\nnice\tpos\n", False),
        ("source\ttarget\nsource\tQuelle\nriver\tFluss\n", True),
        ("text\tlabel\ngood\tyes\ntext\tlabel\nbad\tno\ntext\tlabel\n", True),
    ],
)
def test_a_header_is_told_from_data(tmp_path, text, has_header):
    rows = fields_of(write(tmp_path, "a.tsv", text))
    assert len(rows) == text.count("\n") - has_header
    assert ("0" in rows[0]) != has_header


def test_a_json_object_with_one_list_needs_no_key(tmp_path):
    path = write(tmp_path, "a.json", json.dumps({"version": 1, "data": [{"text": "one"}]}))
    problems = Problems()
    assert fields_of(path, problems=problems) == [{"text": "one"}]
    assert "its only list, 'data'" in str(problems.summary())


def test_names_of_columns_are_unique():
    assert _unique_names(["a", "a", "a_2", "a", ""]) == ["a", "a_2", "a_2_2", "a_3", "4"]
    assert len(set(_unique_names(["x"] * 20_000))) == 20_000
