"""Mixtures: fractions by weight, each dataset in its own epochs, and pools that can be computed directly."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from synthetic_data import documents, quick, tokenizer

from qkv.data.objectives.causal_lm import CausalLMObjective
from qkv.data.stream.mixture import MixtureOrder, mixture_fractions
from qkv.data.stream.sequences import SequenceStream
from qkv.errors import QkvError, UsageError


def dataset(count: int, seed: int = 0, length: int = 16) -> CausalLMObjective:
    return CausalLMObjective(documents([9] * count, seed), tokenizer(), max_length=length)


def datasets(**counts: int) -> dict[str, CausalLMObjective]:
    return {name: dataset(count) for name, count in counts.items()}


@quick
@given(st.lists(st.floats(0.01, 1), min_size=2, max_size=4), st.integers(5, 60))
def test_shares_are_kept_exactly_over_time(weights, size):
    named = {f"s{number}": weight for number, weight in enumerate(weights)}
    mixture = MixtureOrder(datasets(**dict.fromkeys(named, 7)), named, 0, size)
    taken = np.zeros(len(weights))
    for pool in range(6):
        taken += np.bincount(mixture.pool(pool).dataset, minlength=len(weights))
        expected = np.array(weights) / sum(weights) * size * (pool + 1)
        assert (abs(taken - expected) <= 1).all()


def test_every_source_runs_through_its_own_epochs():
    mixture = MixtureOrder(datasets(large=50, small=6), {"large": 0.5, "small": 0.5}, 3, 20)
    seen: dict[tuple[int, int], list[int]] = {}
    for pool in range(30):
        refs = mixture.pool(pool)
        for one, epoch, example in zip(refs.dataset, refs.epoch, refs.example, strict=True):
            seen.setdefault((int(one), int(epoch)), []).append(int(example))
    assert sorted(seen[0, 0]) == list(range(50))
    assert all(sorted(seen[1, epoch]) == list(range(6)) for epoch in range(40))
    assert mixture.epoch_of(20) == 4


def test_an_empty_dataset_is_named():
    with pytest.raises(QkvError, match="no training examples are left in 'none'"):
        SequenceStream(
            {"some": dataset(3), "none": CausalLMObjective(documents([0, 0]), tokenizer(), max_length=16)},
            batch_tokens=64,
        )


def test_a_pool_does_not_depend_on_those_before_it():
    make = lambda: MixtureOrder(datasets(a=13, b=29), {"a": 1, "b": 2.5}, 3, 11)  # noqa: E731
    walked = make()
    for pool in range(25):
        mine, theirs = walked.pool(pool), make().pool(pool)
        assert mine.example.tolist() == theirs.example.tolist()
        assert mine.epoch.tolist() == theirs.epoch.tolist()


def test_datasets_are_shuffled_differently():
    mixture = MixtureOrder(datasets(a=64, b=64), {"a": 1, "b": 1}, 0, 128)
    refs = mixture.pool(0)
    assert refs.example[refs.dataset == 0].tolist() != refs.example[refs.dataset == 1].tolist()


@pytest.mark.parametrize(("weights", "expected"), [(None, (0.8, 0.2)), ({"a": 1, "b": 3}, (0.25, 0.75))])
def test_weights(weights, expected):
    found = mixture_fractions(datasets(a=80, b=20), weights)
    assert tuple(found.values()) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        ({"a": 1, "bb": 1}, "did you mean 'b'"),
        ({"a": 1}, "weights lacks the datasets b"),
        ({"a": 1, "b": 0}, r"weights\['b'\] = 0: a weight must be above 0"),
        ({"a": 1, "b": float("nan")}, "above 0"),
    ],
)
def test_wrong_weights_are_named(weights, message):
    with pytest.raises(UsageError, match=message):
        mixture_fractions(datasets(a=1, b=1), weights)


def test_no_datasets_are_refused():
    with pytest.raises(UsageError, match="at least one dataset"):
        SequenceStream({}, batch_tokens=64)


def test_datasets_of_different_lengths_cannot_be_mixed():
    with pytest.raises(UsageError, match=r"same sequence lengths: 'a' has \(16,\) and 'b' has \(32,\)"):
        SequenceStream({"a": dataset(3), "b": dataset(3, length=32)}, batch_tokens=64)
