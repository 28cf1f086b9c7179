"""Windows over long records: every token in exactly one of them, and what is left out is counted."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from synthetic_data import quick

from qkv.data.objectives.window_index import BLOCK_RECORDS, WindowIndex
from qkv.data.objectives.windows import Windows
from qkv.data.stream.random_bits import EpochRng
from qkv.errors import QkvError, UsageError

many = st.lists(st.integers(0, 40), min_size=1, max_size=200)


@quick
@given(st.lists(st.integers(0, 4), min_size=1, max_size=3 * BLOCK_RECORDS))
def test_pieces_are_found_as_if_all_were_listed(counts):
    index = WindowIndex(len(counts), lambda records: np.array(counts)[records])
    listed = [(record, number) for record, count in enumerate(counts) for number in range(count)]
    assert index.total == len(listed)
    record, number = index.locate(np.arange(index.total))
    assert list(zip(record.tolist(), number.tolist(), strict=True)) == listed


@quick
@given(many, st.integers(1, 12), st.integers(-1, 1), st.booleans(), st.integers(0, 9))
def test_every_unit_is_in_exactly_one_window(lengths, size, extra, shift, epoch):
    windows = Windows(np.array(lengths), size, extra_units=extra, random_offset=shift)
    draw = EpochRng(0, epoch)
    record, first, length = windows.locate(np.arange(windows.num_windows(draw)), draw)
    seen = [[0] * max(0, n + extra if n else 0) for n in lengths]
    for one, begin, count in zip(record, first, length, strict=True):
        assert 1 <= count <= size
        for place in range(begin, begin + count):
            seen[one][place] += 1
    assert all(times == 1 for places in seen for times in places)


def test_shifted_windows_begin_elsewhere_each_epoch_and_leave_short_records_whole():
    windows = Windows(np.array([100, 5]), 16, random_offset=True)
    begins = set()
    for epoch in range(8):
        record, first, _ = windows.locate(np.arange(windows.num_windows(EpochRng(0, epoch))), EpochRng(0, epoch))
        begins.add(tuple(first[record == 0].tolist()))
        assert first[record == 1].tolist() == [0]
    assert len(begins) > 4


def test_too_long_is_an_error_that_says_what_to_do():
    with pytest.raises(
        QkvError, match=r"1 of 3 records.*record 2, needs 30 tokens, and max_length is 18.*Raise max_length"
    ):
        Windows(np.array([3, 8, 28]), 16, too_long="error", num_special_tokens=2)


def test_what_is_skipped_is_counted():
    windows = Windows(np.array([3, 0, 28, 20]), 16, too_long="skip")
    assert windows.num_windows(EpochRng(0)) == 1
    counts = windows.counts
    assert (counts.skipped, counts.lost_tokens, counts.empty, counts.examples, counts.tokens) == (2, 48, 1, 1, 3)


def test_what_is_cut_is_counted():
    windows = Windows(np.array([3, 0, 28, 20]), 16, too_long="truncate")
    _, first, length = windows.locate(np.arange(3), EpochRng(0))
    assert (first.tolist(), length.tolist()) == ([0, 0, 0], [3, 16, 16])
    counts = windows.counts
    assert (counts.truncated, counts.lost_tokens, counts.examples, counts.tokens) == (2, 16, 3, 35)


def test_what_is_split_loses_nothing():
    counts = Windows(np.array([3, 0, 28, 20]), 16, too_long="split").counts
    assert (counts.split, counts.lost_tokens, counts.examples, counts.tokens) == (2, 0, 5, 51)


def test_an_unknown_choice_names_the_nearest():
    with pytest.raises(UsageError, match="did you mean 'skip'"):
        Windows(np.array([3]), 16, too_long="skipp")
