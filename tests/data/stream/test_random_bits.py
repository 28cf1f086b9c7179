"""Random numbers are functions of their keys, uniform, and independent of the other groups in a call."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from synthetic_data import quick

from qkv.data.stream.random_bits import (
    EpochRng,
    choose_in_groups,
    hash64,
    random_bits,
    random_compositions,
    shuffle_groups,
    to_integers,
    to_uniform,
)

sizes = st.lists(st.integers(0, 12), min_size=1, max_size=12)


def test_equal_keys_have_equal_hashes_and_others_differ():
    assert hash64(1, "a") == hash64(1, "a")
    assert len({hash64(1, "a"), hash64(2, "a"), hash64(1, "b"), hash64("1", "a"), EpochRng(1).hash64("a")}) == 5


def test_the_numbers_do_not_change_between_versions():
    # A run that is resumed after an update of qkv must find its own order again.
    assert hash64(0, 0, "order") == 9365939058219994631
    numbers = random_bits(EpochRng(0).keys("mask", np.arange(2)), np.array([0, 1]))
    assert numbers.tolist() == [737671640061935528, 6295374164085947125]


def test_uniform_numbers_are_uniform_and_unrelated():
    keys = EpochRng(3).keys("test", np.arange(1000))
    numbers = to_uniform(random_bits(keys[:, None], np.arange(100)))  # (1000, 100)
    counts = np.histogram(numbers, 20, (0, 1))[0]
    assert ((counts - 5000) ** 2 / 5000).sum() < 60  # chi-square with 19 degrees of freedom
    assert abs(np.corrcoef(numbers[:, 0], numbers[:, 1])[0, 1]) < 0.1
    assert abs(np.corrcoef(numbers[1:, 0], numbers[:-1, 0])[0, 1]) < 0.1


def test_integers_reach_every_number_and_no_other():
    numbers = to_integers(random_bits(EpochRng(0).keys("test", np.arange(2000)), np.array([0])), 7)
    assert set(numbers.tolist()) == set(range(7))


@quick
@given(sizes, st.integers(0, 5))
def test_shuffled_permutes_inside_each_group(groups, seed):
    order = shuffle_groups(EpochRng(seed).keys("test", np.arange(len(groups))), np.array(groups))
    ends = np.cumsum(groups)
    for end, size in zip(ends, groups, strict=True):
        assert sorted(order[end - size : end].tolist()) == list(range(end - size, end))


def test_a_group_is_shuffled_the_same_with_any_others():
    keys = EpochRng(0).keys("test", np.arange(3))
    alone = shuffle_groups(keys[1:2], np.array([9]))
    among = shuffle_groups(keys, np.array([4, 9, 2]))[4:13] - 4
    assert alone.tolist() == among.tolist()


@quick
@given(st.lists(st.tuples(st.integers(0, 12), st.integers(0, 12)), min_size=1, max_size=10), st.integers(0, 5))
def test_choose_chooses_the_given_counts(pairs, seed):
    groups = np.array([max(pair) for pair in pairs])
    counts = np.array([min(pair) for pair in pairs])
    chosen = choose_in_groups(EpochRng(seed).keys("test", np.arange(len(pairs))), groups, counts)
    ends = np.cumsum(groups)
    assert [int(chosen[end - size : end].sum()) for end, size in zip(ends, groups, strict=True)] == counts.tolist()


def test_choose_prefers_no_member():
    keys = EpochRng(0).keys("test", np.arange(5000))
    chosen = choose_in_groups(keys, np.full(5000, 5), np.full(5000, 2)).reshape(5000, 5)
    assert (abs(chosen.mean(axis=0) - 0.4) < 0.03).all()


@quick
@given(st.lists(st.tuples(st.integers(1, 12), st.integers(1, 12)), min_size=1, max_size=10), st.integers(0, 5))
def test_compositions_are_positive_and_add_up(pairs, seed):
    totals = np.array([max(pair) for pair in pairs])
    counts = np.array([min(pair) for pair in pairs])
    parts = random_compositions(EpochRng(seed).keys("test", np.arange(len(pairs))), totals, counts)
    assert (parts > 0).all()
    ends = np.cumsum(counts)
    assert [int(parts[end - n : end].sum()) for end, n in zip(ends, counts, strict=True)] == totals.tolist()


def test_every_composition_is_equally_likely():
    keys = EpochRng(0).keys("test", np.arange(6000))
    parts = random_compositions(keys, np.full(6000, 4), np.full(6000, 2)).reshape(6000, 2)
    counts = np.bincount(parts[:, 0])[1:]  # 1 + 3, 2 + 2, 3 + 1
    assert (abs(counts / 6000 - 1 / 3) < 0.03).all()
