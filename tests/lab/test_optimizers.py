"""The claim on optimizers chooses learning rates fairly, and measures the range of workable ones."""

import pytest

from qkv_lab.claims.training.optimizers import LOSS, tuned_losses, workable_decades
from qkv_lab.table import Point, Table


def test_no_seed_chooses_its_own_learning_rate() -> None:
    losses = {0.1: (1.0, 3.0), 0.3: (2.0, 2.0)}
    table = Table([[Point(LOSS, "SGD", lr, values[seed]) for lr, values in losses.items()] for seed in range(2)])
    assert tuned_losses(table, "SGD") == [2.0, 3.0]


def test_the_workable_range_ends_between_grid_points_or_at_the_end_of_the_grid() -> None:
    assert workable_decades({0.01: 2.4, 0.1: 2.0, 1.0: 2.4}) == pytest.approx(1.0)
    assert workable_decades({0.01: 2.1, 0.1: 2.0, 1.0: 2.4}) == pytest.approx(1.5)
    assert workable_decades({0.1: 2.0}) == 0
