"""Fits of scaling laws find the law that made the losses."""

from itertools import product

import pytest

from qkv_lab.scaling import ScaledRun, ScalingLaw, fit_scaling_law

SIZES, TOKENS = (1e3, 3e3, 1e4, 3e4), (1e4, 3e4, 1e5)


def runs_of(law: ScalingLaw) -> list[ScaledRun]:
    return [ScaledRun(n, d, law.predict(n, d)) for n, d in product(SIZES, TOKENS)]


def test_a_fit_finds_the_law_and_predicts_larger_runs() -> None:
    law = ScalingLaw(1.2, 30.0, 0.45, 60.0, 0.36)
    found = fit_scaling_law(runs_of(law))
    assert (found.alpha, found.beta) == pytest.approx((0.45, 0.36))
    assert found.irreducible == pytest.approx(1.2, abs=1e-6)
    assert found.predict(1e6, 1e7) == pytest.approx(law.predict(1e6, 1e7))


@pytest.mark.parametrize("slope", [0.0, 0.1])
def test_no_term_of_a_fit_is_negative(slope: float) -> None:
    """The loss of these runs does not fall with their size."""
    found = fit_scaling_law([ScaledRun(n, d, 2.0 + slope * (n / 1e4)) for n, d in product(SIZES, TOKENS)])
    assert found.a == 0
    assert min(found.b, found.irreducible) >= 0
