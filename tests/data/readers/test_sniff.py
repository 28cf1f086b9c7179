"""Files whose names say less than their content: tables in text files, CoNLL in TSV files, tables without a header."""

import json

import pytest
from data_fakes import counts, fields_of, write

from qkv.data import Problems
from qkv.data.readers.delimited import _unique_names

CONLL = "EU\tB-ORG\nrejects\tO\n\nPeter\tB-PER\nBlackburn\tI-PER\n"


@pytest.mark.parametrize("name", ["ner.tsv", "ner.txt", "ner.tsv.gz", "eng.train", "eng.train.gz"])
@pytest.mark.parametrize("separator", ["\t", " "])
def test_words_with_tags_are_conll_whatever_the_name(tmp_path, name, separator):
    import gzip

    path, text = tmp_path / name, CONLL.replace("\t", separator).encode()
    path.write_bytes(gzip.compress(text) if name.endswith(".gz") else text)
    problems = Problems()
    assert fields_of(path, problems=problems) == [
        {"tokens": ["EU", "rejects"], "tags": ["B-ORG", "O"]},
        {"tokens": ["Peter", "Blackburn"], "tags": ["B-PER", "I-PER"]},
    ]
    assert "format" in counts(problems)
    assert "--format" in str(problems.summary())


def test_verses_of_two_words_are_text(tmp_path):
    verses = "roses red\nviolets blue\n\nsugar sweet\nhoney too\n"
    assert [one["text"] for one in fields_of(write(tmp_path, "a.txt", verses))] == verses.replace("\n\n", "\n").split(
        "\n"
    )[:4]


@pytest.mark.parametrize(
    ("name", "start"),
    [("a.csv", "My reviews\n"), ("a.csv", "one,two,three\n"), ("a.tsv", "My reviews\n"), ("a.csv", "# of 2020\n\n")],
)
def test_a_bad_first_line_is_the_only_bad_one(tmp_path, name, start):
    separator = "\t" if name.endswith("tsv") else ","
    rows = f"text{separator}label\n" + f"so it is{separator}yes\n" * 9
    problems = Problems(max_invalid_fraction=1)
    assert (
        fields_of(write(tmp_path, name, start + rows), problems=problems) == [{"text": "so it is", "label": "yes"}] * 9
    )
    assert (problems.num_invalid, problems.num_seen) == (1, 10)
    assert "a.csv:1:".replace("a.csv", name) in str(problems.summary())


def test_a_title_does_not_decide_the_delimiter_nor_a_broken_token_the_columns(tmp_path):
    table = "Reviews\n" + "text;label\n" + "so it is;yes\n" * 9
    assert fields_of(write(tmp_path, "a.csv", table)) == [{"text": "so it is", "label": "yes"}] * 9
    conll = "broken O O\n\n" + CONLL.replace("\t", " ")
    assert len(fields_of(write(tmp_path, "a.conll", conll))) == 2


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("a.txt", "text\tlabel\nfine\tyes\n", [{"text": "fine", "label": "yes"}]),
        ("a.txt", "text\tlabel\r\nfine\tyes\r\n", [{"text": "fine", "label": "yes"}]),
        ("a.txt", "one\ttab\nno tab\n", [{"text": "one\ttab"}, {"text": "no tab"}]),
        ("a.txt", "one\tline\n", [{"text": "one\tline"}]),
        ("a.txt", "plain\ntext\n", [{"text": "plain"}, {"text": "text"}]),
        ("a.json", '{"n": 1}\n{"n": 2}\n', [{"n": 1}, {"n": 2}]),
        ("a.json", '{\n"data": [{"n": 1}]}\n', [{"n": 1}]),
        ("a.jsonl", '[{"n": 1},\n{"n": 2}]', [{"n": 1}, {"n": 2}]),
        ("a.txt", '{"n": 1}\n{"n": 2}\n', [{"n": 1}, {"n": 2}]),
        ("a.txt", "{so it is}\nit is so\n", [{"text": "{so it is}"}, {"text": "it is so"}]),
        (
            "a.txt",
            "My list\n" + "text\tlabel\n" * 12 + "a\tb\n",
            [{"text": "text", "label": "label"}] * 11 + [{"text": "a", "label": "b"}],
        ),
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
        ("sun\tsunlight\t50.0\nriver\twater\t49.0\nmorning\tsunrise\t49.0\n", False),
        # Two cells are equal, or all words of a cell occur below it, in a table whose names nobody would guess.
        ("Bluff\tBluff\tN;DAT\nHund\tHunde\tN;PL\nWeg\tWege\tN;SG\n", False),
        ("a dog\tein Hund\na cat\teine Katze\nthe dog\tder Hund\na red dog\tein roter Hund\n", False),
        ("phrase\tsatz\na cat\teine Katze\nthe dog\tder Hund\na red dog\tein roter Hund\n", True),
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
