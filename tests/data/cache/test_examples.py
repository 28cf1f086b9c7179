"""Examples in memory: slices of many at once."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from synthetic_data import quick

from qkv.data.cache.examples import InMemoryExamples
from qkv.data.ragged import ragged_index, ragged_join, ragged_starts
from qkv.errors import UsageError

lists = st.lists(st.lists(st.integers(-5, 400), max_size=6), min_size=1, max_size=8)


@quick
@given(lists, st.data())
def test_slices_are_those_of_the_lists(made, data):
    examples = InMemoryExamples([{"ids": ids} for ids in made])
    chosen = data.draw(st.lists(st.integers(0, len(made) - 1), min_size=1, max_size=6))
    starts = [data.draw(st.integers(0, len(made[one]))) for one in chosen]
    counts = [data.draw(st.integers(0, len(made[one]) - start)) for one, start in zip(chosen, starts, strict=True)]
    flat, offsets = examples.gather("ids", np.array(chosen), np.array(starts), np.array(counts))
    found = [flat[a:b].tolist() for a, b in pairwise(offsets)]
    assert found == [made[one][s : s + n] for one, s, n in zip(chosen, starts, counts, strict=True)]


def test_fractions_stay_fractions():
    examples = InMemoryExamples([{"score": 0.5}, {"score": 2}])
    assert examples[0]["score"].tolist() == [0.5]
    assert examples[1]["score"].dtype == np.float32


def test_a_wrong_field_names_the_nearest():
    with pytest.raises(UsageError, match="did you mean 'ids'"):
        InMemoryExamples([{"ids": [1]}]).lengths("idz")


def test_beyond_the_end():
    with pytest.raises(IndexError, match="there is no example 1: the numbers are 0 to 0"):
        InMemoryExamples([{"ids": [1]}])[1]


@quick
@given(lists)
def test_ragged_indices(made):
    lengths = np.array([len(ids) for ids in made])
    flat = np.array([token for ids in made for token in ids], int)
    starts = ragged_starts(lengths)
    assert flat[ragged_index(starts, lengths)].tolist() == flat.tolist()
    backwards = [token for ids in made[::-1] for token in ids]
    assert flat[ragged_index(starts[::-1], lengths[::-1])].tolist() == backwards


@quick
@given(
    st.lists(st.tuples(st.lists(st.integers(0, 9), max_size=4), st.lists(st.integers(0, 9), max_size=4)), max_size=6)
)
def test_ragged_join(made):
    parts = [
        (np.array([t for pair in made for t in pair[side]], int), np.array([len(pair[side]) for pair in made], int))
        for side in (0, 1)
    ]
    flat, lengths = ragged_join(parts)
    assert flat.tolist() == [token for one, two in made for token in one + two]
    assert lengths.tolist() == [len(one) + len(two) for one, two in made]
