"""The learning rate over a run: it rises from almost nothing, then falls as the schedule says.

    rate = lr · min(rise, fall)

rise            warm-up, a straight line to 1: a young network takes big steps in wrong directions
constant        fall = 1
cosine, linear  fall goes from 1, where warm-up ends, to `final_lr`, where the budget does
inverse_sqrt    fall = √(w / step), w the steps of warm-up: the 2017 paper's, with `lr` as its peak
wsd             warm-up, stable, decay: 1 until the last `decay_share` of the budget, then a line down to `final_lr`

A run's budget may be steps, minutes or epochs, so everything is told from two numbers: the step and the share done.
"""

import math

from qkv.train.recipe.schema import TrainSection

MIN_WARMUP_FACTOR = 0.01
"""Where the first step of the warm-up begins if a budget in minutes or epochs hides how many steps it has."""


def lr_at(section: TrainSection, step: int, done: float) -> float:
    """The rate for update `step` (from 0), where the share `done` (0 … 1) of the budget is spent before it.

    >>> section = TrainSection(steps=100, lr=1.0, warmup=10, schedule="linear")
    >>> [round(lr_at(section, step, step / 100), 2) for step in (0, 4, 9, 10, 55, 99)]
    [0.1, 0.5, 1.0, 1.0, 0.5, 0.01]
    """
    done = min(max(done, 0.0), 1.0)
    return section.lr * min(_warmup_factor(section, step, done), _decay_factor(section, step, done))


def _warmup_factor(section: TrainSection, step: int, done: float) -> float:
    """Warm-up: 1/w at the first step, 1 at step w."""
    if section.warmup >= 1:
        return min((step + 1) / section.warmup, 1.0)
    if section.warmup <= 0:
        return 1.0
    least = 0.0 if section.steps else MIN_WARMUP_FACTOR
    return min(max(_fraction_after_step(section, done) / section.warmup, least), 1.0)


def _decay_factor(section: TrainSection, step: int, done: float) -> float:
    last = section.final_lr
    if section.schedule == "constant":
        return 1.0
    if section.schedule == "inverse_sqrt":
        return max(math.sqrt(_inverse_step(section, step, done)), last)
    if section.schedule == "wsd":
        along = _fraction_from(done, 1.0 - section.decay_fraction)
        return 1.0 - (1.0 - last) * along
    along = _fraction_from(done, _warmup_fraction(section, step, done))
    if section.schedule == "linear":
        return 1.0 - (1.0 - last) * along
    return last + (1.0 - last) * (1.0 + math.cos(math.pi * along)) / 2.0


def _fraction_after_step(section: TrainSection, done: float) -> float:
    """The share that is done once this step is, as far as it can be told."""
    return done + (1.0 / section.steps if section.steps else 0.0)


def _warmup_fraction(section: TrainSection, step: int, done: float) -> float:
    """The share of the budget at which warm-up ends. If it is counted in steps: what the steps so far suggest."""
    if section.warmup < 1:
        return max(section.warmup, 0.0)
    return done * section.warmup / step if step > section.warmup else 1.0


def _inverse_step(section: TrainSection, step: int, done: float) -> float:
    """w / (step + 1), at most 1; in shares of the budget where the warm-up is one."""
    if 0 < section.warmup < 1:
        return section.warmup / max(_fraction_after_step(section, done), section.warmup)
    return min(max(section.warmup, 1.0) / (step + 1), 1.0)


def _fraction_from(done: float, start: float) -> float:
    """How far along the way from `start` to the end of the budget, 0 … 1."""
    return min(max((done - start) / (1.0 - start), 0.0), 1.0) if start < 1.0 else 0.0
