"""The learning rate schedule: linear warm-up, then decay.

    rate = lr · min(warmup factor, decay factor)

warm-up         a straight line from almost 0 to 1
constant        decay factor 1
cosine, linear  from 1 at the end of warm-up to `final_lr_ratio` at the end of the budget
inverse_sqrt    √(w / (step + 1)), with w steps of warm-up, as in "Attention Is All You Need"; `lr` is the peak. The
                factor is never below `final_lr_ratio`
wsd             warm-up, stable, decay: 1 until the last `decay_fraction` of the budget, then a line down to
                `final_lr_ratio`

The budget may be in steps, minutes or epochs, so the rate is a function of the step and the spent fraction of the
budget.
"""

import math

from qkv.train.recipe.schema import TrainSection
from qkv.train.tables import SCHEDULES

MIN_WARMUP_FACTOR = 0.01
"""The warm-up factor of the first step if the number of steps is unknown: with a budget in minutes or epochs."""


def lr_at(section: TrainSection, step: int, fraction_done: float) -> float:
    """Return the learning rate of step `step` (from 0). Before it, `fraction_done` (0 … 1) of the budget is spent.

    >>> section = TrainSection(steps=100, lr=1.0, warmup=10, schedule="linear")
    >>> [round(lr_at(section, step, step / 100), 2) for step in (0, 4, 9, 10, 55, 99)]
    [0.1, 0.5, 1.0, 1.0, 0.5, 0.01]
    """
    fraction_done = min(max(fraction_done, 0.0), 1.0)
    decay_factor = SCHEDULES.find(section.schedule, "train.schedule")
    return section.lr * min(_warmup_factor(section, step, fraction_done), decay_factor(section, step, fraction_done))


def _warmup_factor(section: TrainSection, step: int, fraction_done: float) -> float:
    """Return a factor that rises in a straight line, and is 1 from the end of warm-up on."""
    if section.warmup >= 1:
        return min((step + 1) / section.warmup, 1.0)
    if section.warmup <= 0:
        return 1.0
    minimum = 0.0 if section.steps else MIN_WARMUP_FACTOR
    return min(max(_fraction_after_step(section, fraction_done) / section.warmup, minimum), 1.0)


def constant_decay(section: TrainSection, step: int, fraction_done: float) -> float:
    """Return 1."""
    return 1.0


def inverse_sqrt_decay(section: TrainSection, step: int, fraction_done: float) -> float:
    """Return √(w / (step + 1)), but at least `final_lr_ratio`; both are fractions of the budget if `warmup` is."""
    if 0 < section.warmup < 1:
        done = _fraction_after_step(section, fraction_done)
        return max(math.sqrt(section.warmup / max(done, section.warmup)), section.final_lr_ratio)
    return max(math.sqrt(min(max(section.warmup, 1.0) / (step + 1), 1.0)), section.final_lr_ratio)


def wsd_decay(section: TrainSection, step: int, fraction_done: float) -> float:
    """Return a factor that falls in a straight line in the last `decay_fraction` of the budget."""
    return _fall(_decay_progress(fraction_done, 1.0 - section.decay_fraction), section.final_lr_ratio)


def linear_decay(section: TrainSection, step: int, fraction_done: float) -> float:
    """Return a factor that falls in a straight line after warm-up."""
    return _fall(_decay_progress(fraction_done, _warmup_fraction(section, step, fraction_done)), section.final_lr_ratio)


def cosine_decay(section: TrainSection, step: int, fraction_done: float) -> float:
    """Return a factor that falls as half of a cosine after warm-up."""
    progress = _decay_progress(fraction_done, _warmup_fraction(section, step, fraction_done))
    return section.final_lr_ratio + (1.0 - section.final_lr_ratio) * (1.0 + math.cos(math.pi * progress)) / 2.0


def _fall(progress: float, last: float) -> float:
    return 1.0 - (1.0 - last) * progress


def _fraction_after_step(section: TrainSection, fraction_done: float) -> float:
    """Return the spent fraction of the budget after this step, or before it if the budget is not in steps."""
    return fraction_done + (1.0 / section.steps if section.steps else 0.0)


def _warmup_fraction(section: TrainSection, step: int, fraction_done: float) -> float:
    """Return the fraction of the budget at which warm-up ends.

    If `warmup` is in steps, estimate the fraction from the speed so far.
    """
    if section.warmup < 1:
        return max(section.warmup, 0.0)
    return fraction_done * section.warmup / step if step > section.warmup else 1.0


def _decay_progress(fraction_done: float, start: float) -> float:
    """Return how far the decay has come: 0 at `start`, 1 at the end of the budget."""
    return min(max((fraction_done - start) / (1.0 - start), 0.0), 1.0) if start < 1.0 else 0.0
