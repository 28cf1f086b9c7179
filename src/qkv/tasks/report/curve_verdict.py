"""Over- and underfitting, read from the curves of a run.

diverged    the training loss ended well above its lowest value, or was not finite
stalled     the training loss hardly fell, and neither did the validation loss
overfitted  the validation loss ended clearly above its lowest value
improving   the validation loss still fell at the end: the run was too short
settled     none of these
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from qkv.train.run.curves import Points, RunCurves

Verdict = Literal["diverged", "stalled", "overfitted", "improving", "settled", "unknown"]

MIN_EVALUATIONS = 3
MAX_RISE = 0.05  # of the final validation loss above its minimum, as a fraction
MIN_CHANGE = 0.01  # the smallest change of a loss that matters, as a fraction of the first training loss
EARLY = 0.8  # a minimum of the validation loss before this fraction of the run is early
LATE_GAIN = 0.05  # if the validation loss falls by this fraction in the last quarter, a longer run is worth it
MAX_GAP = 0.7  # a training loss below this fraction of the validation loss: a longer run would overfit
MIN_FALL = 0.1  # a loss that falls by less than this fraction in a whole run has hardly fallen
DIVERGED = 0.5  # in a diverged run, the loss rose again by more than this fraction of its earlier fall


@dataclass(frozen=True)
class CurveVerdict:
    """What the curves of a run show."""

    verdict: Verdict
    summary: str
    first_loss: float = math.nan  # training loss, smoothed
    last_loss: float = math.nan
    best_valid_loss: float = math.nan
    best_step: int = 0
    last_valid_loss: float = math.nan
    steps: int = 0  # the last one in the log


def diagnose_curves(curves: RunCurves) -> CurveVerdict:
    """Decide from the curves of a run which verdict applies."""
    losses = curves.training
    finite = [(step, value) for step, value in losses if math.isfinite(value)]
    valid = [(step, value) for step, value in curves.validation.get("loss", []) if math.isfinite(value)]
    steps = int(losses[-1][0]) if losses else 0
    if len(finite) < MIN_EVALUATIONS:
        return CurveVerdict("unknown", "too few steps were logged to judge the training", steps=steps)
    smooth = smooth_losses(finite)
    first, last, lowest = smooth[0], smooth[-1], min(smooth)
    min_change = MIN_CHANGE * first
    best_step, best = min(valid, key=lambda point: point[1]) if valid else (0.0, math.nan)
    last_valid = valid[-1][1] if valid else math.nan

    def conclude(verdict: Verdict, summary: str) -> CurveVerdict:
        return CurveVerdict(verdict, summary, first, last, best, int(best_step), last_valid, steps)

    has_risen = last - lowest > max(DIVERGED * (first - lowest), MIN_FALL * first)
    is_single_batch = len(smooth) == len(finite)  # too few points to smooth: the validation loss decides
    has_valid_risen = last_valid - best > max(MAX_RISE * best, min_change) or last_valid > (1 - MIN_FALL) * first
    if len(finite) < len(losses) or (has_risen and (not is_single_batch or len(valid) < 2 or has_valid_risen)):
        return conclude("diverged", f"the training loss fell from {first:.3g} to {lowest:.3g}, but ended at {last:.3g}")
    has_valid_fallen = bool(valid) and valid[0][1] - last_valid >= MIN_FALL * valid[0][1]
    if first - last < MIN_FALL * first and not has_valid_fallen:
        return conclude("stalled", f"the training loss hardly fell: {first:.3g} at the start, {last:.3g} at the end")
    fall = f"the training loss {'fell' if last < first else 'rose'} from {first:.3g} to {last:.3g}"
    if len(valid) < MIN_EVALUATIONS:
        return conclude("unknown", f"{fall}; there are too few evaluations to judge the validation loss")
    is_early = best_step <= EARLY * steps
    if last_valid - best > max(MAX_RISE * best, min_change) and is_early:  # label smoothing: losses are not comparable
        return conclude(
            "overfitted",
            f"the validation loss was lowest at step {int(best_step):,} of {steps:,} ({best:.3g}) and rose to "
            f"{last_valid:.3g}, while {fall}",
        )
    before = value_at_last_quarter(valid, curves.lr or finite)
    gain = (before - last_valid) / max(before, 1e-9)
    if gain > LATE_GAIN and gain * last_valid > min_change and not is_early and last > MAX_GAP * last_valid:
        return conclude(
            "improving",
            f"the validation loss still fell by {100 * gain:.0f} % in the last quarter of the training, to "
            f"{last_valid:.3g}",
        )
    return conclude("settled", f"{fall}, and the validation loss settled at {last_valid:.3g}")


def value_at_last_quarter(points: Points, lr: Points) -> float:
    """The last value of a curve before the last quarter of the training; the final value if there is none.

    Training is measured by the sum of the learning rates, because steps with a low learning rate change little. For
    example, with a cosine schedule, the loss of a run that is far too short is flat at its end, too.
    """
    total = sum(rate for _, rate in lr)
    done, border = 0.0, lr[-1][0]
    for step, rate in lr:
        done += rate
        if done > 0.75 * total:
            border = step
            break
    before = [value for step, value in points if step <= border]
    return before[-1] if before else points[-1][1]


def late_metric_gain(points: Points, lr: Points) -> float:
    """By how much a metric rose in the last quarter of the training; 0 if it was higher before."""
    values = [value for _, value in points]
    if len(values) < MIN_EVALUATIONS or not lr or values[-1] < max(values):
        return 0.0
    return values[-1] - value_at_last_quarter(points, lr)


def smooth_losses(points: Sequence[tuple[float, float]]) -> list[float]:
    """Means over a tenth of the points, because the loss of a single batch is noisy.

    >>> smooth_losses([(1, 4.0), (2, 2.0), (3, 1.0)])
    [4.0, 2.0, 1.0]
    """
    width = max(1, len(points) // 10)
    values = [value for _, value in points]
    return [sum(values[i : i + width]) / width for i in range(0, len(values) - width + 1, width)]
