"""The statistics of a few paired values, compared with SciPy where it is installed, and by simulation."""

import numpy as np
import pytest

from qkv.tasks.study.paired import compare_pairs, seeds_needed, t_cdf, t_quantile
from qkv.tasks.study.result import describe_difference


@pytest.mark.parametrize("freedom", [1, 2, 3, 7, 40])
def test_student_t_agrees_with_scipy(freedom: int) -> None:
    stats = pytest.importorskip("scipy.stats")
    for probability in (0.6, 0.9, 0.975, 0.9995):
        assert t_quantile(probability, freedom) == pytest.approx(stats.t.ppf(probability, freedom))
    for value in (0.0, 0.3, 2.0, 30.0):
        assert t_cdf(value, freedom) == pytest.approx(stats.t.cdf(value, freedom))


@pytest.mark.parametrize("count", [2, 3, 5])
def test_intervals_hold_the_truth_as_often_as_they_say(count: int) -> None:
    rng = np.random.default_rng(0)
    held = 0
    for _ in range(400):
        noise = rng.normal(0.3, 1.0, count)
        low, high = compare_pairs(noise.tolist(), [0.0] * count).interval or (0, 0)
        held += low <= 0.3 <= high
    assert held / 400 == pytest.approx(0.95, abs=0.03)


def test_pairs_find_what_unpaired_values_do_not() -> None:
    """Seeds differ much more than the variants do."""
    theirs = [1.0, 2.0, 3.0, 4.0]
    found = compare_pairs([value - 0.1 + 0.01 * i for i, value in enumerate(theirs)], theirs)
    assert found.is_settled
    shuffled = compare_pairs([value - 0.1 for value in reversed(theirs)], theirs)
    assert not shuffled.is_settled


def test_the_seeds_that_are_needed_settle_it_four_times_of_five() -> None:
    needed = seeds_needed(0.5, 1.0) or 0
    rng = np.random.default_rng(1)
    settled = [compare_pairs(rng.normal(0.5, 1.0, needed).tolist(), [0.0] * needed).is_settled for _ in range(300)]
    assert np.mean(settled) == pytest.approx(0.8, abs=0.07)
    assert needed == 34
    assert seeds_needed(1e-6, 1.0) is None


def test_verdicts() -> None:
    def verdict(ours: list[float], theirs: list[float], metric: str = "loss", is_lower: bool = True) -> str:
        return describe_difference("b", "a", metric, is_lower, compare_pairs(ours, theirs))

    assert verdict([1.0, 1.1, 1.2], [2.0, 2.1, 2.21]).startswith("b is better than a: loss −1.003 (95 % interval")
    assert verdict([0.9, 0.91], [0.5, 0.511], "accuracy", False).startswith("b is better than a: accuracy +40")
    assert verdict([0.9, 0.91], [0.5, 0.511]).startswith("b is worse than a")
    assert "with 3 seeds: " in verdict([1.0, 2.0, 3.0], [1.1, 2.2, 2.5])
    assert verdict([1.0], [1.2]).endswith(
        "One seed per variant: the difference holds for these runs, not for the change of the recipe"
    )
    assert "about" in verdict([1.0, 2.0, 3.0], [1.1, 2.2, 2.5])
