"""The order of examples: a permutation each epoch, without memory, that can be entered anywhere."""

import tracemalloc

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from synthetic_data import documents, quick, tokenizer

from qkv.data.objectives.causal_lm import CausalLMObjective
from qkv.data.stream.order import EpochOrder, Permutation, SingleDatasetOrder
from qkv.data.stream.random_bits import hash64


@quick
@given(st.integers(1, 3000), st.integers(0, 2**64 - 1))
def test_every_position_gives_another_example(size, key):
    examples = Permutation(size, key)(np.arange(size))
    assert sorted(examples.tolist()) == list(range(size))


@quick
@given(st.integers(1, 500), st.lists(st.integers(0, 499), min_size=1, max_size=20))
def test_positions_are_looked_up_one_by_one_or_together(size, positions):
    permutation = Permutation(size, 7)
    positions = [position % size for position in positions]
    assert permutation(np.array(positions)).tolist() == [int(permutation(np.array([p]))[0]) for p in positions]


def test_the_order_does_not_change_between_versions():
    assert Permutation(10, 3)(np.arange(10)).tolist() == [0, 1, 7, 4, 9, 2, 8, 6, 5, 3]


def test_a_huge_corpus_costs_no_memory():
    tracemalloc.start()
    examples = Permutation(10**15, 5)(np.arange(1000))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert len(set(examples.tolist())) == 1000
    assert examples.max() > 10**14  # spread over all of it, not only its beginning
    assert peak < 10**6


def test_every_example_comes_to_every_position_equally_often():
    counts = np.zeros((6, 6), int)
    for key in range(3000):
        counts[np.arange(6), Permutation(6, hash64(key))(np.arange(6))] += 1
    assert (abs(counts / 500 - 1) < 0.2).all()


def test_neighbours_are_scattered():
    examples = Permutation(100_000, 11)(np.arange(100_000))
    assert abs(np.corrcoef(examples, np.arange(100_000))[0, 1]) < 0.01
    assert abs(np.corrcoef(examples[1:], examples[:-1])[0, 1]) < 0.01


def with_offset(lengths=(40, 100, 3, 77)) -> CausalLMObjective:
    return CausalLMObjective(documents(list(lengths)), tokenizer(), max_length=16, random_offset=True)


@quick
@given(st.integers(1, 50), st.integers(0, 3))
def test_the_pools_of_an_epoch_have_every_example_once(pool_size, seed):
    order = SingleDatasetOrder(with_offset(), seed, pool_size)
    for epoch in range(3):
        pools = [order.pool(index) for index in range(order.num_pools(epoch), order.num_pools(epoch + 1))]
        examples = np.concatenate([pool.example for pool in pools])
        assert sorted(examples.tolist()) == list(range(order.epoch_order.num_examples(epoch)))
        assert {int(one) for pool in pools for one in pool.epoch} == {epoch}


def test_epochs_differ_in_order():
    order = SingleDatasetOrder(CausalLMObjective(documents([1] * 64), tokenizer(), max_length=16), 0, 64)
    assert order.pool(0).example.tolist() != order.pool(1).example.tolist()


def test_a_pool_does_not_depend_on_those_before_it():
    walked = SingleDatasetOrder(with_offset(), 1, 5)
    for index in range(20):
        fresh = SingleDatasetOrder(with_offset(), 1, 5)
        assert fresh.pool(index).example.tolist() == walked.pool(index).example.tolist()
        assert fresh.epoch_of(index) == walked.epoch_of(index)


def test_an_order_runs_through_epochs_of_different_sizes():
    order = EpochOrder(with_offset(), 0)
    sizes = [order.num_examples(epoch) for epoch in range(4)]
    assert len(set(sizes)) > 1  # the control: this corpus does have epochs of different sizes
    refs = order.refs(0, sum(sizes))
    assert refs.epoch.tolist() == [epoch for epoch, size in enumerate(sizes) for _ in range(size)]
    for epoch, size in enumerate(sizes):
        assert sorted(refs.example[refs.epoch == epoch].tolist()) == list(range(size))
