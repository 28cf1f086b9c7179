"""The validation split: disjoint, complete, the same everywhere, and never one example on both sides."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qkv.data.records import FileLocation, Record
from qkv.data.split import ValidationSplit
from qkv.errors import QkvError, UsageError


def records(texts, **more) -> list[Record]:
    return [Record({"text": text, **more}, FileLocation("a.txt", n + 1)) for n, text in enumerate(texts)]


def sides(split: ValidationSplit, all_records: list[Record]) -> tuple[list[Record], list[Record]]:
    def take(side):
        try:
            return list(split.records(lambda: iter(all_records), side))
        except QkvError:
            return []

    return take("train"), take("validation")


TEXTS = st.lists(st.text(max_size=6), min_size=1, max_size=40)


@given(TEXTS, st.floats(0.05, 0.95), st.integers(0, 9))
def test_every_record_is_on_one_side_and_copies_stay_together(texts, fraction, seed):
    train, validation = sides(ValidationSplit(fraction, seed), records(texts))
    assert sorted(r.location.line for r in train + validation) == list(range(1, len(texts) + 1))
    assert not {r.fields["text"] for r in train} & {r.fields["text"] for r in validation}


@given(TEXTS, TEXTS)
def test_appending_moves_nobody(texts, more):
    before = [r.location.line for r in sides(ValidationSplit(0.3), records(texts))[1]]
    after = [
        r.location.line for r in sides(ValidationSplit(0.3), records(texts + more))[1] if r.location.line <= len(texts)
    ]
    assert before == after


@given(TEXTS)
def test_a_larger_share_holds_the_smaller_one(texts):
    small, large = ({r.location.line for r in sides(ValidationSplit(f), records(texts))[1]} for f in (0.1, 0.4))
    assert small <= large


def test_the_share_is_met_on_average_and_depends_on_the_seed():
    many = records([f"text {n}" for n in range(20_000)])
    chosen = [{r.location.line for r in sides(ValidationSplit(0.1, seed), many)[1]} for seed in (0, 1)]
    assert all(1850 < len(one) < 2150 for one in chosen)  # 3.5 standard deviations of 42
    assert len(chosen[0] & chosen[1]) < 400  # two independent tenths share a hundredth


def test_the_split_is_the_same_on_every_machine():
    """Frozen: a split that changes would put yesterday's validation records into today's training."""
    found = [
        r.location.line
        for r in sides(ValidationSplit(0.3, seed=7), records([f"text {n}" for n in range(20)], label=1))[1]
    ]
    assert found == [5, 10, 14, 18]


def test_records_that_agree_in_a_field_stay_together():
    pairs = [Record({"source": f"s{n // 5}", "target": f"t{n}"}, FileLocation("a.tsv", n + 1)) for n in range(200)]
    train, validation = sides(ValidationSplit(0.3, group_by=("source",)), pairs)
    assert validation
    assert not {r.fields["source"] for r in train} & {r.fields["source"] for r in validation}
    mixed = sides(ValidationSplit(0.3), pairs)
    assert {r.fields["source"] for r in mixed[0]} & {r.fields["source"] for r in mixed[1]}, "without `by` they mix"
    with pytest.raises(
        UsageError, match="no field 'scource', which group_by names; set group_by to one of its fields: source, target"
    ):
        list(ValidationSplit(0.3, group_by=("scource",)).records(lambda: pairs, "train"))


def test_fields_do_not_run_into_each_other():
    one = Record({"a": "xy", "b": "z"}, FileLocation("f"))
    other = Record({"a": "x", "b": "yz"}, FileLocation("f"))
    assert any(ValidationSplit(0.5, seed).assign(one) != ValidationSplit(0.5, seed).assign(other) for seed in range(40))


@given(st.text(min_size=2, max_size=200), st.floats(0.1, 0.9))
def test_the_tail_of_one_text_is_its_last_characters(text, fraction):
    train, validation = sides(ValidationSplit(fraction, split_by="tail"), records([text]))
    border = int(len(text) * (1 - fraction))
    assert "".join(r.fields["text"] for r in train) == text[:border]
    assert "".join(r.fields["text"] for r in validation) == text[border:]


@given(st.lists(st.text(min_size=1, max_size=9), min_size=2, max_size=30))
def test_the_tail_of_many_texts_loses_and_repeats_nothing(texts):
    train, validation = sides(ValidationSplit(0.25, split_by="tail"), records(texts))
    assert "".join(r.fields["text"] for r in train + validation) == "".join(texts)


def test_the_tail_never_cuts_a_pair():
    pairs = [Record({"source": "x" * 10, "target": "y" * 10}, FileLocation("a", n)) for n in range(10)]
    train, validation = sides(ValidationSplit(0.25, split_by="tail"), pairs)
    assert train + validation == pairs
    assert len(validation) == 2


def test_wrong_shares_and_empty_sides_are_errors():
    for fraction in (0, 1, 1.5):
        with pytest.raises(UsageError, match="must be above 0 and below 1"):
            ValidationSplit(fraction)
    with pytest.raises(QkvError, match="leaves no records for validation"):
        list(ValidationSplit(1e-9).records(lambda: records(["a", "b"]), "validation"))
    with pytest.raises(QkvError, match=r"leaves no records for train: .*; set a smaller fraction"):
        list(ValidationSplit(1 - 1e-9).records(lambda: records(["a", "b"]), "train"))
    with pytest.raises(UsageError, match="'content' or 'tail'"):
        ValidationSplit(0.1, split_by="random")  # type: ignore[arg-type]
    with pytest.raises(UsageError, match=r"group_by = .* does not work with split_by"):
        ValidationSplit(0.1, split_by="tail", group_by=("text",))


def empty_side(split: ValidationSplit, all_records: list[Record]) -> str:
    passes = iter([all_records])  # the callers read the files only once for a split by content
    with pytest.raises(QkvError) as caught:
        list(split.records(lambda: next(passes), "validation"))
    return str(caught.value)


def test_an_empty_side_because_of_equal_records_says_how_many_differ():
    message = empty_side(ValidationSplit(1e-9), records([f"text {n % 16}" for n in range(300)]))
    assert (
        "there are 300 records, but only 16 of them are different, and equal records stay on the same side" in message
    )
    assert message.endswith("; set a larger fraction, or name a validation file with data.valid")
    few = empty_side(ValidationSplit(1e-9), records(["a", "a", "b"]))
    assert "there are too few records; set a larger fraction" in few
    equal = empty_side(ValidationSplit(1e-9), records(["a"] * 300))
    assert "there are 300 records, but they are all equal" in equal
    assert equal.endswith("side of the split; name a validation file with data.valid")  # no fraction would help
    pairs = [Record({"source": f"s{n % 4}", "target": f"t{n}"}, FileLocation("a.tsv", n + 1)) for n in range(20)]
    message = empty_side(ValidationSplit(1e-9, group_by=("source",)), pairs)
    assert "20 records, but only 4 of them are different (by source)" in message


def test_an_empty_side_of_one_record_advises_a_split_by_tail():
    message = empty_side(ValidationSplit(1e-9), records(["one long text"]))
    assert message.endswith('with data.valid, or split one long text with data.valid_split_by = "tail"')
    assert "fraction, or" not in message
    assert "tail" not in empty_side(ValidationSplit(1e-9), records(["a", "b"]))
