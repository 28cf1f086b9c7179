"""A label is the same class however a file writes it, and an empty one is reported."""

import json

import pytest
from data_fakes import counts, write
from synthetic_data import record, tokenizer

from qkv.data import EncodeClass, find_classes
from qkv.data.labels import label_text
from qkv.data.objectives.tagging import EncodeTags
from qkv.data.problems import InvalidRecord, Problems
from qkv.data.readers import DataFiles


def read_labels(path, field: str = "label") -> tuple[list, Problems]:
    problems = Problems(max_invalid_fraction=1)
    found = DataFiles(path, class_field=field).records(problems)
    return [one.fields[field] for one in found], problems


def test_white_space_around_labels_is_no_part_of_them(tmp_path):
    table = write(tmp_path, "a.csv", 'text,label\n"x", pos\ny,pos \nz,neg\n')
    assert read_labels(table)[0] == ["pos", "pos", "neg"]
    lists = write(tmp_path, "a.jsonl", '{"text": "x", "label": [" sport", "news ", 3]}\n{"text": "y", "label": []}\n')
    assert read_labels(lists)[0] == [["sport", "news", "3"], []]
    tagged = write(tmp_path, "a.conll", "Anna\tB-PER \nruns\tO\n")
    assert read_labels(tagged, "tags")[0] == [["B-PER", "O"]]
    found, problems = read_labels(write(tmp_path, "b.conll", "Anna\tB-PER\nruns\t\n\nBen\tB-PER\n"), "tags")
    assert found == [["B-PER"]]
    assert "b.conll:1: the tag is empty" in str(problems.summary())


def test_numbers_and_truth_values_are_labels_by_their_text(tmp_path):
    values = [1, 1.0, "1", "1.0", 0.5, True, "true"]
    path = write(tmp_path, "a.jsonl", "".join(json.dumps({"text": "x", "label": one}) + "\n" for one in values))
    assert read_labels(path)[0] == ["1", "1", "1", "1.0", "0.5", "true", "true"]


def test_records_without_a_usable_label_are_left_out_and_reported(tmp_path):
    rows = ['{"label": "a"}', '{"label": " "}', '{"label": NaN}', '{"label": {"x": 1}}', '{"label": ["a", ""]}']
    found, problems = read_labels(write(tmp_path, "a.jsonl", "\n".join(rows)))
    assert found == ["a"]
    assert counts(problems) == {"no label": 3, "wrong type": 1}
    assert (problems.num_seen, problems.num_invalid) == (5, 4)
    assert "a.jsonl:2: the label is empty" in str(problems.summary())


def test_other_fields_and_files_without_labels_are_untouched(tmp_path):
    path = write(tmp_path, "a.jsonl", '{"text": " x ", "score": true}\n')
    files = DataFiles(path, class_field="label")
    assert [one.fields for one in files.records(Problems())] == [{"text": " x ", "score": True}]


def test_a_cache_of_class_names_is_not_one_of_labels_as_they_are(tmp_path):
    path = write(tmp_path, "a.csv", "text,label\nx,1\n")
    keys = [DataFiles(path, class_field=field).content_key(str) for field in ("", "label")]
    assert keys[0] != keys[1]


def test_encoders_and_find_classes_use_the_same_names():
    records = [record(text="a", label=label) for label in (" yes", "yes", False, 2.0, "")]
    classes = find_classes(records, "label")
    assert classes == ("2", "false", "yes")
    *encoded, invalid = EncodeClass(tokenizer(), label="label", classes=classes)(records)
    assert [one["label"] for one in encoded] == [2, 2, 1, 0]
    assert "the field 'label' is empty" in invalid.reason
    encode = EncodeClass(tokenizer(), label="label", classes=classes, multi_label=True)
    assert encode([record(text="a", label=["yes ", False])])[0]["labels"] == [1, 2]
    (tagged,) = EncodeTags(tokenizer(), classes=("B", "O"))([record(tokens=["a"], tags=[" B "])])
    assert tagged["tags"] == [0]


def test_a_label_that_is_none_says_what_it_must_be():
    with pytest.raises(InvalidRecord, match="the tag must be a text or a number, not dict"):
        label_text({"name": "x"}, "tag")
