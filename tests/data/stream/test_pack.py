"""Packing: nothing overlaps, nothing is lost, nothing exceeds its sequence; and it is tight."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from synthetic_data import quick

from qkv.data.stream.pack import PackingLayout, _largest, best_fit_decreasing, group_by_length, pack
from qkv.errors import UsageError

single_lengths = st.lists(st.tuples(st.integers(0, 20)), min_size=0, max_size=60)
pair_lengths = st.lists(st.tuples(st.integers(1, 20), st.integers(0, 15)) | st.just((0, 0)), min_size=0, max_size=60)


def check(layout: PackingLayout, lengths: np.ndarray, max_lengths: tuple[int, ...], max_documents: int) -> None:
    """The slow way: write every example into its sequences, token by token."""
    present = [index for index in range(len(lengths)) if lengths[index].any()]
    assert sorted(layout.example.tolist()) == present
    for side, length in enumerate(max_lengths):
        sequences = [[0] * length for _ in range(layout.num_sequences)]
        for example, sequence, document, offset in zip(
            layout.example, layout.sequence, layout.document, layout.offset[:, side], strict=True
        ):
            for position in range(offset, offset + lengths[example, side]):
                assert sequences[sequence][position] == 0, "two examples at one position"
                sequences[sequence][position] = document
        for sequence in sequences:
            used = [document for document in sequence if document]
            assert sequence[: len(used)] == used, "a hole before the padding"
            assert used == sorted(used)
    for sequence in range(layout.num_sequences):
        documents = layout.document[layout.sequence == sequence].tolist()
        assert documents == list(range(1, len(documents) + 1))
        assert 1 <= len(documents) <= max_documents


@quick
@given(single_lengths, st.integers(1, 8))
def test_single_lengths(lengths, max_documents):
    sizes = np.array(lengths, np.int64).reshape(-1, 1)
    check(pack(sizes, (20,), max_documents), sizes, (20,), max_documents)


@quick
@given(pair_lengths, st.integers(1, 8))
def test_pairs(lengths, max_documents):
    sizes = np.array(lengths, np.int64).reshape(-1, 2)
    check(pack(sizes, (20, 15), max_documents), sizes, (20, 15), max_documents)


def slow_best_fit(sizes: list[int], max_length: int) -> int:
    rooms: list[int] = []
    for size in sorted(sizes, reverse=True):
        fitting = [room for room in rooms if room >= size]
        if fitting:
            rooms.remove(min(fitting))
            rooms.append(min(fitting) - size)
        else:
            rooms.append(max_length - size)
    return len(rooms)


@quick
@given(st.lists(st.integers(1, 30), min_size=1, max_size=80))
def test_best_fit_is_best_fit(sizes):
    assert best_fit_decreasing(np.array(sizes), 30, max_documents=10**9)[1] == slow_best_fit(sizes, 30)


@quick
@given(st.lists(st.integers(0, 5), max_size=30), st.integers(1, 20))
def test_the_largest_values_come_first_and_equal_ones_in_order(values, count):
    expected = sorted((i for i, value in enumerate(values) if value), key=lambda i: -values[i])[:count]
    assert _largest(np.array(values, float), count) == expected


def test_an_example_longer_than_its_sequence_is_refused():
    with pytest.raises(UsageError, match="does not fit"):
        pack(np.array([[5], [11]]), (10,), 8)


def test_the_plan_depends_on_nothing_but_the_lengths():
    sizes = np.random.default_rng(0).integers(1, 60, (500, 2))
    one, two = (pack(sizes.copy(), (256, 256), 50) for _ in range(2))
    assert one.example.tolist() == two.example.tolist()
    assert one.sequence.tolist() == two.sequence.tolist()


@pytest.mark.parametrize("shape", ["short", "broad", "half sequences"])
def test_packed_sequences_are_nearly_full(shape):
    random = np.random.default_rng(1)
    lengths = {
        "short": random.integers(5, 40, 8000),
        "broad": random.integers(1, 1025, 8000),
        "half sequences": random.integers(250, 700, 8000),
    }
    sizes = lengths[shape][:, None]
    assert pack(sizes, (1024,), 1024).padding_fraction(sizes, (1024,)) < 0.025


def test_pairs_fill_both_sides_together():
    random = np.random.default_rng(2)
    source = random.integers(5, 40, 6000)
    target = np.maximum(1, source + random.integers(-4, 6, 6000))
    sizes = np.stack([target, source], axis=1)
    max_lengths = (512, round(512 * source.mean() / target.mean()))
    assert pack(sizes, max_lengths, 512).padding_fraction(sizes, max_lengths) < 0.02


@quick
@given(pair_lengths, st.integers(20, 200))
def test_groups_by_length_keep_to_their_tokens(lengths, max_tokens):
    sizes = np.array(lengths, np.int64).reshape(-1, 2)
    layout, first_sequence, widths = group_by_length(sizes, max_tokens)
    assert sorted(layout.example.tolist()) == [index for index in range(len(sizes)) if sizes[index].any()]
    assert layout.document.tolist() == [1] * len(layout.example)
    for group, (first, last) in enumerate(pairwise(first_sequence)):
        inside = sizes[layout.example[first:last]]
        assert widths[group].tolist() == inside.max(axis=0).tolist()
        assert last - first == 1 or (last - first) * widths[group].sum() <= max_tokens
