"""The learning rate schedule: linear warm-up, then decay.

    rate = lr · min(warmup factor, decay factor)

warm-up         a straight line from almost 0 to 1
constant        decay factor 1
cosine, linear  from 1 at the end of warm-up to `final_lr` at the end of the budget
inverse_sqrt    √(w / step), with w the steps of warm-up: as in the 2017 paper, with `lr` as its peak
wsd             warm-up, stable, decay: 1 until the last `decay_fraction` of the budget, then a line down to `final_lr`

The budget may be in steps, minutes or epochs, so the rate is a function of the step and the fraction that is done.
"""

import math

from qkv.train.recipe.schema import TrainSection

MIN_WARMUP_FACTOR = 0.01
"""The warm-up factor of the first step if the budget is in minutes or epochs, and so the number of steps unknown."""


def lr_at(section: TrainSection, step: int, done: float) -> float:
    """The learning rate of step `step` (from 0), before which the fraction `done` (0 … 1) of the budget is spent.

    >>> section = TrainSection(steps=100, lr=1.0, warmup=10, schedule="linear")
    >>> [round(lr_at(section, step, step / 100), 2) for step in (0, 4, 9, 10, 55, 99)]
    [0.1, 0.5, 1.0, 1.0, 0.5, 0.01]
    """
    done = min(max(done, 0.0), 1.0)
    return section.lr * min(_warmup_factor(section, step, done), _decay_factor(section, step, done))


def _warmup_factor(section: TrainSection, step: int, done: float) -> float:
    """1/w at the first step, 1 at step w."""
    if section.warmup >= 1:
        return min((step + 1) / section.warmup, 1.0)
    if section.warmup <= 0:
        return 1.0
    minimum = 0.0 if section.steps else MIN_WARMUP_FACTOR
    return min(max(_fraction_after_step(section, done) / section.warmup, minimum), 1.0)


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
    """The fraction that will be done after this step, as far as it is known."""
    return done + (1.0 / section.steps if section.steps else 0.0)


def _warmup_fraction(section: TrainSection, step: int, done: float) -> float:
    """The fraction of the budget at which warm-up ends; estimated from the speed so far if warm-up is in steps."""
    if section.warmup < 1:
        return max(section.warmup, 0.0)
    return done * section.warmup / step if step > section.warmup else 1.0


def _inverse_step(section: TrainSection, step: int, done: float) -> float:
    """w / (step + 1), at most 1; in fractions of the budget if warm-up is one."""
    if 0 < section.warmup < 1:
        return section.warmup / max(_fraction_after_step(section, done), section.warmup)
    return min(max(section.warmup, 1.0) / (step + 1), 1.0)


def _fraction_from(done: float, start: float) -> float:
    """How far `done` is on the way from `start` to the end of the budget, 0 … 1."""
    return min(max((done - start) / (1.0 - start), 0.0), 1.0) if start < 1.0 else 0.0
