"""Correlations, perplexity and bits."""

import math

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from qkv.tasks import metrics
from qkv.tasks.metrics.numbers import weighted_ranks
from qkv.tasks.table import TASKS
from qkv.train.progress import lower_is_better

numbers = st.integers(-20, 20).map(float)
pairs = st.lists(st.tuples(numbers, numbers), min_size=3, max_size=30)


@settings(deadline=None)
@given(pairs)
def test_correlations_agree_with_scipy(listed: list[tuple[float, float]]) -> None:
    theirs = pytest.importorskip("scipy.stats", reason="compared with scipy where it is installed")
    one, two = [a for a, _ in listed], [b for _, b in listed]
    assume(len(set(one)) > 1 and len(set(two)) > 1)
    assert metrics.pearson(one, two) == pytest.approx(theirs.pearsonr(one, two).statistic, abs=1e-9)
    assert metrics.spearman(one, two) == pytest.approx(theirs.spearmanr(one, two).statistic, abs=1e-9)


def test_ranks_share_the_mean_of_ties() -> None:
    assert weighted_ranks(np.array([1, 0, 1, 1, 2]), np.ones(5)).tolist() == [3.0, 1.0, 3.0, 3.0, 5.0]


def test_correlations_by_hand() -> None:
    assert metrics.spearman([1, 2, 3, 4], [10, 9, 100, 1000]) == pytest.approx(0.8)  # 1 − 6·2/(4·15)
    assert metrics.pearson([0, 0, 1, 1], [0, 1, 0, 1]) == pytest.approx(0.0)
    assert metrics.pearson([1, 1, 1], [1, 2, 3]) == 0.0  # nothing varies
    assert metrics.pearson([1e300, 2e300, 3e300], [1e-300, 2e-300, 3e-300]) == pytest.approx(1.0)


@given(pairs)
def test_order_alone_counts_for_spearman(listed: list[tuple[float, float]]) -> None:
    one, two = [a for a, _ in listed], [b for _, b in listed]
    bent = [math.exp(value / 10) for value in one]
    assert metrics.spearman(bent, two) == pytest.approx(metrics.spearman(one, two), abs=1e-12)
    assert metrics.spearman([-value for value in one], two) == pytest.approx(-metrics.spearman(one, two), abs=1e-12)


def test_a_uniform_model_has_the_vocabulary_as_perplexity() -> None:
    loss = float(np.log(50_257))
    assert metrics.perplexity(loss) == pytest.approx(50_257)
    assert metrics.perplexity(1e6) == math.inf
    assert metrics.bits_per_unit(3 * math.log(256), 3) == pytest.approx(8)  # eight bits a byte
    assert metrics.bits_per_unit(1.0, 0) == 0.0


def test_a_run_knows_which_way_each_metric_improves() -> None:
    low = {
        "loss",
        "perplexity",
        "bits_per_character",
        "bits_per_byte",
        "word_error_rate",
        "character_error_rate",
        "ter",
    }
    names = {name for task in TASKS.values() for name in task.list_metrics()}
    assert {name for name in names if lower_is_better(name)} == low
