"""Leakage: every near-duplicate is found, as by comparing all pairs; time is limited."""

from hypothesis import given, settings
from hypothesis import strategies as st

from qkv.data import FileLocation, Record
from qkv.tasks.report.leakage import (
    MAX_SIMILAR,
    MIN_SIMILARITY,
    MIN_TEMPLATE_SIMILARITY,
    MIN_WORDS,
    find_leakage,
    word_pairs,
)
from qkv.text.bm25 import normalized_words

LONG = "the quick brown fox jumps over the lazy dog near the old stone bridge at noon every single day of the week"
texts = st.lists(st.lists(st.sampled_from("abcdefgh"), max_size=14).map(" ".join), max_size=8)


def make_records(listed: list[str], file: str, targets: list[str] | None = None) -> list[Record]:
    rows = zip(listed, targets or [""] * len(listed), strict=True)
    return [
        Record({"text": text, "target": target}, FileLocation(file, i + 1)) for i, (text, target) in enumerate(rows)
    ]


def text_of(record: Record) -> str:
    return str(record.fields["text"])


def target_of(record: Record) -> str:
    return str(record.fields["target"])


@given(texts, texts)
@settings(max_examples=60, deadline=None)
def test_the_index_finds_what_all_pairs_find(evaluation: list[str], training: list[str]) -> None:
    report = find_leakage(make_records(evaluation, "valid"), make_records(training, "train"), text_of)
    expected = set()
    for number, one in enumerate(evaluation):
        words = normalized_words(one)
        similar: dict[str, float] = {}
        for other in training:
            ours, theirs = word_pairs(words), word_pairs(normalized_words(other))
            if ours and theirs and len(ours & theirs) >= MIN_SIMILARITY * len(ours | theirs):
                similar[other] = len(ours & theirs) / len(ours | theirs)
        is_template = len(similar) > MAX_SIMILAR and len(evaluation) > 1
        if any(similarity >= MIN_TEMPLATE_SIMILARITY or not is_template for similarity in similar.values()):
            expected.add(number)
        if words and words in map(normalized_words, training):
            expected.add(number)
    assert report.leaks.keys() == expected


def test_equal_words_count_whatever_their_case_and_punctuation() -> None:
    evaluation = make_records(["Cool!", "cool story"], "valid")
    report = find_leakage(evaluation, make_records(["  cool ."], "train"), text_of)
    assert report.num_exact == len(report.leaks) == 1
    assert (report.leaks[0].evaluation, report.leaks[0].training) == ("valid:1", "train:1")
    assert report.fraction == 0.5


def test_one_changed_word_is_nearly_the_same_and_another_text_is_not() -> None:
    changed = LONG.replace("stone", "wooden")
    other = " ".join(reversed(LONG.split()))
    report = find_leakage(make_records([LONG], "valid"), make_records([other, changed], "train"), text_of)
    assert report.leaks[0].training == "train:2"
    assert (report.leaks[0].text, report.leaks[0].training_text) == (LONG, changed)
    assert MIN_SIMILARITY <= report.leaks[0].similarity < 1
    assert not find_leakage(make_records([LONG], "valid"), make_records([other], "train"), text_of).leaks
    short = " ".join(LONG.split()[: MIN_WORDS - 1])
    assert not find_leakage(make_records([short], "valid"), make_records([short + " x"], "train"), text_of).leaks


def test_contradictory_labels_are_listed_once_for_each_repetition() -> None:
    rows = [("good film", "a"), ("Good film!", "b"), ("good film", "a"), ("bad film", "b"), ("bad film", "b")]
    training = [Record({"text": text, "label": label}, FileLocation("t", i)) for i, (text, label) in enumerate(rows)]
    report = find_leakage([], training, text_of, target_of=lambda one: str(one.fields["label"]), has_labels=True)
    assert report.conflicts == [("Good film!", "a", "b")]


def test_the_search_stops_when_the_time_is_up() -> None:
    training = make_records([f"text {i}" for i in range(2000)], "train")
    report = find_leakage(make_records(["text 1999"], "valid"), training, text_of, max_seconds=0)
    assert not report.complete
    assert 0 < report.num_training < 2000
    assert find_leakage(make_records(["text 1999"], "valid"), training, text_of).leaks


def mails(numbers: range, target: str) -> list[Record]:
    texts = [f"The meeting about number {i} is on Monday. Bring the plan for number {i}." for i in numbers]
    return make_records(texts, "mails", [target.format(i) for i in numbers])


def test_texts_from_a_template_are_leaks_only_if_their_targets_are_equal() -> None:
    """The targets of the summaries differ; the labels are equal, but all records have the same one."""
    for target in ("meeting {}", "work"):
        assert not find_leakage(
            mails(range(20), target), mails(range(20, 40), target), text_of, target_of=target_of
        ).leaks
    changed = LONG.replace("stone", "wooden")
    for targets, num_leaks in ((["a", "b"], 1), (["b", "a"], 0), (["a", "a"], 1)):
        evaluation = make_records([LONG, "another text"], "valid", targets)
        report = find_leakage(evaluation, make_records([changed], "train", ["a"]), text_of, target_of=target_of)
        assert len(report.leaks) == num_leaks
    equal = find_leakage(make_records([LONG], "valid", ["b"]), make_records([LONG], "train", ["a"]), text_of)
    assert equal.num_exact == 1, "the model has read this text, whatever its target"


def test_a_changed_word_is_a_leak_for_a_frequent_label_unless_many_texts_differ_in_a_word() -> None:
    evaluation = make_records([LONG, "another text"], "valid", ["a", "a"])
    changed = [LONG.replace("stone", word) for word in ("iron", "wooden", "brick", "steel")]
    cases = [(changed[:1], True), (changed[:MAX_SIMILAR], True), (changed, False), (changed[:1] * 9, True)]
    for texts, is_leak in cases:
        training = make_records(texts, "train", ["a"] * len(texts))
        assert bool(find_leakage(evaluation, training, text_of, target_of=target_of).leaks) == is_leak, texts
    long = " ".join(f"word{i}" for i in range(60))  # in a long text, one word is less than a template's
    evaluation = make_records([long, "another text"], "valid", ["a", "a"])
    training = make_records([long.replace("word30", f"else{i}") for i in range(9)], "train", ["a"] * 9)
    assert list(find_leakage(evaluation, training, text_of, target_of=target_of).leaks) == [0]


def test_variants_of_one_text_are_leaks_only_if_they_are_equal() -> None:
    evaluation, training = make_records([LONG, f"{LONG} and"], "valid"), make_records([LONG], "train")
    assert len(find_leakage(evaluation, training, text_of).leaks) == 2
    assert list(find_leakage(evaluation, training, text_of, are_variants=True).leaks) == [0]
