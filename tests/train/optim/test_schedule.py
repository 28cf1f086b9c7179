"""Schedules: continuous, never negative, from almost 0 to the peak and to the final rate, for every kind of budget."""

import math
from itertools import pairwise

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from qkv.train.optim.schedule import lr_at
from qkv.train.recipe.schema import TrainSection

SCHEDULES = ("cosine", "linear", "constant", "inverse_sqrt", "wsd")

shares = st.floats(0.0, 0.9, allow_subnormal=False)
sections = st.builds(
    lambda schedule, steps, warmup, decay_share, final_lr_ratio, share: TrainSection(
        steps=steps,
        lr=2.0,
        schedule=schedule,
        warmup=warmup if share else round(1 + warmup * steps / 2),
        decay_fraction=decay_share,
        final_lr_ratio=final_lr_ratio,
    ),
    st.sampled_from(SCHEDULES),
    st.integers(10, 5000),
    shares,
    st.floats(0.01, 1.0),
    st.floats(0.0, 1.0),
    st.booleans(),
)


def rates(section: TrainSection) -> list[float]:
    return [lr_at(section, step, step / section.steps) for step in range(section.steps)]


def warmup_steps(section: TrainSection) -> float:
    return section.warmup if section.warmup >= 1 else section.warmup * section.steps


@settings(deadline=None, derandomize=True)
@given(section=sections, step=st.integers(0, 5000), done=st.floats(0.0, 1.0))
def test_between_nothing_and_the_peak_and_never_nothing_at_first(section, step, done):
    assert 0.0 <= lr_at(section, step, done) <= section.lr
    assert lr_at(section, 0, 0.0) > 0.0


@settings(deadline=None, derandomize=True)
@given(section=sections)
def test_no_jumps(section):
    """From one step to the next the rate changes by no more than the steepest slope that was asked for."""
    seen = rates(section)
    warm = max(warmup_steps(section), 1.0)
    rise = 1.0 / warm
    rest = max(section.steps - warm, 1.0)
    fall = {
        "constant": 0.0,
        "cosine": math.pi / 2 / rest,
        "linear": 1.0 / rest,
        "wsd": 1.0 / (section.decay_fraction * section.steps),
        "inverse_sqrt": 1.0 - math.sqrt(warm / (warm + 1)),
    }[section.schedule]
    for a, b in pairwise(seen):
        assert -section.lr * fall * (1 + 1e-6) - 1e-9 <= b - a <= section.lr * rise * (1 + 1e-6) + 1e-9


@settings(deadline=None, derandomize=True)
@given(section=sections)
def test_up_and_then_down(section):
    seen = rates(section)
    top = seen.index(max(seen))
    assert all(a <= b + 1e-12 for a, b in pairwise(seen[: top + 1]))
    assert all(a >= b - 1e-12 for a, b in pairwise(seen[top:]))


@settings(deadline=None, derandomize=True)
@given(section=sections)
def test_the_first_step_is_one_part_of_the_warm_up(section):
    warm = warmup_steps(section)
    assume(warm >= 1)
    assert lr_at(section, 0, 0.0) == pytest.approx(section.lr / warm)


@settings(deadline=None, derandomize=True)
@given(section=sections.filter(lambda section: section.schedule in ("cosine", "linear", "wsd")))
def test_ends_at_the_final_rate(section):
    assert lr_at(section, section.steps, 1.0) == pytest.approx(section.lr * section.final_lr_ratio, abs=1e-9)


@settings(deadline=None, derandomize=True)
@given(warmup=st.integers(1, 100), final_lr_ratio=st.floats(0.0, 1.0), later=st.integers(0, 100_000))
def test_the_inverse_root_stops_at_the_final_rate(warmup, final_lr_ratio, later):
    section = TrainSection(steps=200_000, lr=1.0, schedule="inverse_sqrt", warmup=warmup, final_lr_ratio=final_lr_ratio)
    step = warmup + later
    assert lr_at(section, step, step / 200_000) == max(math.sqrt(warmup / (step + 1)), final_lr_ratio)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_share_and_the_steps_it_makes_are_the_same_warm_up(schedule):
    by_share = TrainSection(steps=400, lr=1.0, schedule=schedule, warmup=0.1)
    by_steps = TrainSection(steps=400, lr=1.0, schedule=schedule, warmup=40)
    assert rates(by_share) == pytest.approx(rates(by_steps), abs=1e-12)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_budget_in_minutes_is_followed_by_its_share(schedule):
    """The steps go by at any speed, and change it on the way: what is done decides."""
    section = TrainSection(minutes=2.0, lr=1.0, schedule=schedule, warmup=0.1, final_lr_ratio=0.05)
    quick = [lr_at(section, step, step / 1000) for step in range(0, 1001, 10)]
    slow = [lr_at(section, step, step / 100) for step in range(101)]
    assert quick == slow
    assert slow[0] == pytest.approx(0.01)
    assert slow[10] == pytest.approx(1.0)


@pytest.mark.parametrize("schedule", ["cosine", "linear"])
def test_warm_up_in_steps_of_a_budget_in_minutes(schedule):
    """How long the warm-up takes is seen from the steps so far; the fall begins where it ended and is whole."""
    timed = TrainSection(minutes=1.0, lr=1.0, schedule=schedule, warmup=20)
    counted = TrainSection(steps=200, lr=1.0, schedule=schedule, warmup=20)
    seen = [lr_at(timed, step, step / 200) for step in range(201)]
    assert seen == pytest.approx([lr_at(counted, step, step / 200) for step in range(201)])
    assert seen[20] == pytest.approx(1.0)
    assert seen[200] == pytest.approx(0.0, abs=1e-12)


def test_no_warm_up():
    assert lr_at(TrainSection(steps=10, lr=1.0, warmup=0.0), 0, 0.0) == 1.0


def test_the_2017_formula():
    """lrate = C^(−1/2) · min(step^(−1/2), step · warmup^(−3/2)), the first step being 1."""
    width, warmup = 512, 4000
    peak = width**-0.5 * warmup**-0.5
    for given_as in (TrainSection(lr=peak, schedule="inverse_sqrt", warmup=warmup, steps=100_000),
                     TrainSection(lr=peak, schedule="inverse_sqrt", warmup=0.04, steps=100_000)):  # fmt: skip
        for step in (1, 2, 100, 3999, 4000, 4001, 50_000, 100_000):
            paper = width**-0.5 * min(step**-0.5, step * warmup**-1.5)
            assert lr_at(given_as, step - 1, (step - 1) / 100_000) == pytest.approx(paper)


def test_cosine_equals_torchs():
    section = TrainSection(steps=50, lr=0.3, schedule="cosine", warmup=0.0, final_lr_ratio=0.1)
    optimizer = torch.optim.SGD([torch.zeros(1)], lr=0.3)
    torchs = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=50, eta_min=0.03)
    for step in range(50):
        assert lr_at(section, step, step / 50) == pytest.approx(torchs.get_last_lr()[0])
        optimizer.step()
        torchs.step()


def test_warm_up_stable_decay():
    section = TrainSection(steps=100, lr=1.0, schedule="wsd", warmup=10, decay_fraction=0.2, final_lr_ratio=0.5)
    seen = rates(section)
    assert seen[9:81] == [1.0] * 72
    assert seen[90] == pytest.approx(0.75)
