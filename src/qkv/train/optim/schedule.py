"""The learning rate schedule: linear warm-up, then decay.

    rate = lr · min(warmup factor, decay factor)

warm-up         a straight line from almost 0 to 1
constant        decay factor 1
cosine, linear  from 1 at the end of warm-up to `final_lr` at the end of the budget
inverse_sqrt    √(w / (step + 1)), with w steps of warm-up, as in "Attention Is All You Need"; `lr` is the peak. The
                factor is never below `final_lr`
wsd             warm-up, stable, decay: 1 until the last `decay_fraction` of the budget, then a line down to `final_lr`

The budget may be in steps, minutes or epochs, so the rate is a function of the step and the spent fraction of the
budget.
"""

import math

from qkv.train.recipe.schema import TrainSection

MIN_WARMUP_FACTOR = 0.01
"""The warm-up factor of the first step if the number of steps is unknown: with a budget in minutes or epochs."""


def lr_at(section: TrainSection, step: int, fraction_done: float) -> float:
    """Return the learning rate of step `step` (from 0). Before it, `fraction_done` (0 … 1) of the budget is spent.

    >>> section = TrainSection(steps=100, lr=1.0, warmup=10, schedule="linear")
    >>> [round(lr_at(section, step, step / 100), 2) for step in (0, 4, 9, 10, 55, 99)]
    [0.1, 0.5, 1.0, 1.0, 0.5, 0.01]
    """
    fraction_done = min(max(fraction_done, 0.0), 1.0)
    return section.lr * min(_warmup_factor(section, step, fraction_done), _decay_factor(section, step, fraction_done))


def _warmup_factor(section: TrainSection, step: int, fraction_done: float) -> float:
    """Return a factor that rises in a straight line, and is 1 from the end of warm-up on."""
    if section.warmup >= 1:
        return min((step + 1) / section.warmup, 1.0)
    if section.warmup <= 0:
        return 1.0
    minimum = 0.0 if section.steps else MIN_WARMUP_FACTOR
    return min(max(_fraction_after_step(section, fraction_done) / section.warmup, minimum), 1.0)


def _decay_factor(section: TrainSection, step: int, fraction_done: float) -> float:
    last = section.final_lr
    if section.schedule == "constant":
        return 1.0
    if section.schedule == "inverse_sqrt":
        return max(_inverse_sqrt_factor(section, step, fraction_done), last)
    is_wsd = section.schedule == "wsd"
    start = 1.0 - section.decay_fraction if is_wsd else _warmup_fraction(section, step, fraction_done)
    along = min(max((fraction_done - start) / (1.0 - start), 0.0), 1.0) if start < 1.0 else 0.0  # 0 → 1 in the decay
    if is_wsd or section.schedule == "linear":
        return 1.0 - (1.0 - last) * along
    return last + (1.0 - last) * (1.0 + math.cos(math.pi * along)) / 2.0


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


def _inverse_sqrt_factor(section: TrainSection, step: int, fraction_done: float) -> float:
    """Return √(w / (step + 1)), at most 1. If warm-up is a fraction, use fractions of the budget instead of steps."""
    if 0 < section.warmup < 1:
        return math.sqrt(section.warmup / max(_fraction_after_step(section, fraction_done), section.warmup))
    return math.sqrt(min(max(section.warmup, 1.0) / (step + 1), 1.0))
