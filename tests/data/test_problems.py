"""Problems are counted, named and limited; a stored summary can be merged into a later run."""

import json

import pytest

from qkv.data.problems import Problems, TooManyProblems
from qkv.data.records import FileLocation
from qkv.errors import QkvError


def some_problems(max_invalid_fraction: float = 1.0) -> Problems:
    problems = Problems(max_invalid_fraction)
    problems.num_seen = 1000
    for line in range(1, 9):
        problems.skip("broken JSON", FileLocation("a.jsonl", line), f"reason {line}")
    problems.skip("missing field", FileLocation("b.jsonl", 3), "no field 'text'")
    problems.note("byte-order mark", FileLocation("a.jsonl"), "read as UTF-8")
    return problems


def test_the_summary_names_the_first_of_each_kind_and_counts_the_rest():
    text = str(some_problems(0.05).summary())
    assert text.startswith("9 of 1,000 records could not be used (0.9 %; the limit is 5 %)\n")
    assert "  broken JSON: 8 in a.jsonl\n    a.jsonl:1: reason 1\n" in text
    assert "    … and 3 more\n" in text
    assert "  byte-order mark: 1 in a.jsonl, handled\n    a.jsonl: read as UTF-8" in text


def test_the_summary_is_plain_json_and_can_be_merged():
    found = json.loads(json.dumps(some_problems().summary().to_dict()))
    again = Problems(1.0)
    again.merge(found)
    assert again.summary() == some_problems().summary()
    again.merge(found)
    assert (again.num_seen, again.num_invalid, again.categories["broken JSON"].count) == (2000, 18, 16)
    assert len(again.categories["broken JSON"].samples) == again.max_samples


def test_notes_do_not_count_as_invalid():
    problems = Problems(max_invalid_fraction=0)
    problems.num_seen = 9
    assert str(problems.summary()) == "all records can be used"
    problems.note("blank line", FileLocation("a.txt", 1), "left out", count=5)
    problems.finish()
    assert problems.num_invalid == 0
    assert str(problems.summary()) == "blank line: 5 in a.txt, handled\n  a.txt:1: left out"


def test_a_stricter_run_refuses_what_a_lenient_one_accepted():
    lenient = some_problems()
    lenient.finish()
    strict = Problems(0.001)
    strict.merge(lenient.summary().to_dict())
    with pytest.raises(TooManyProblems, match="9 of 1,000"):
        strict.finish()


def test_a_broken_file_is_refused_again_by_a_stricter_run():
    lenient = Problems(1.0)
    lenient.num_seen = 10
    lenient.broken_file("gzip ends early", FileLocation("a.gz"), "ends early")
    lenient.finish()
    strict = Problems(0.5)
    strict.merge(lenient.summary().to_dict())
    with pytest.raises(TooManyProblems, match=r"a\.gz: ends early"):
        strict.finish()


def test_a_share_is_between_none_and_all():
    with pytest.raises(QkvError, match="max_invalid_fraction = 5 is not a fraction"):
        Problems(max_invalid_fraction=5)
