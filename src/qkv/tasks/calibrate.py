"""Calibrate a classifier: divide its logits by a temperature, so that its probabilities are as high as it is right.

A classifier that is trained to the end is usually too sure of itself. One number, fitted on the validation data,
corrects most of that and changes no label (Guo et al. 2017, "On Calibration of Modern Neural Networks").

N texts, V classes
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from qkv.data.records import Record
from qkv.models import Config
from qkv.tasks.run.classify import class_names, class_probabilities, compute_logits, record_text
from qkv.tasks.task import TextModel

MIN_RECORDS = 50
"""With fewer validation records, the temperature stays 1."""
MAX_RECORDS = 1000
TEMPERATURE_RANGE = (0.05, 20.0)
GOLDEN_RATIO = (5**0.5 - 1) / 2
NUM_BINS = 10


def calibrate(model: TextModel, records: Sequence[Record], batch_size: int = 32) -> tuple[Config, str]:
    """The model's config with a fitted temperature, and a sentence on it; the same config and "" if there is no fit."""
    head, classes = model.config.head, class_names(model.config)
    numbers = {name: number for number, name in enumerate(classes)}
    usable = [
        one for one in records if str(one.fields.get("label")) in numbers and isinstance(one.fields.get("text"), str)
    ]
    usable = usable[:MAX_RECORDS]
    if head.kind != "classify" or head.multi_label or head.outputs < 2 or len(usable) < MIN_RECORDS:
        return model.config, ""
    logits, _ = compute_logits(model, [record_text(one) for one in usable], batch_size)
    expected = np.array([numbers[str(one.fields["label"])] for one in usable])
    if not np.isfinite(logits).all():
        return model.config, ""
    fitted = replace(model.config, head=replace(head, temperature=fit_temperature(logits, expected)))
    raw = replace(model.config, head=replace(head, temperature=1.0))
    before, after = (calibration_error(class_probabilities(one, logits), expected) for one in (raw, fitted))
    return fitted, (
        f"temperature {fitted.head.temperature:.3f}, fitted on {len(usable):,} validation records, on which it changes "
        f"the expected calibration error from {before:.3f} to {after:.3f}"
    )


def fit_temperature(logits: np.ndarray, expected: np.ndarray) -> float:
    """The temperature with the smallest cross-entropy: logits (N, V), class numbers (N,).

    The cross-entropy has a single minimum, which a golden-section search over log temperatures finds.

    >>> logits = np.array([[4.0, 0.0]] * 4)                     # sure of class 0, but right in three of four cases
    >>> round(4 / fit_temperature(logits, np.array([0, 0, 0, 1])), 2)   # log(3)
    1.1
    """

    def cross_entropy(log_temperature: float) -> float:
        scaled = logits.astype(np.float64) / np.exp(log_temperature)
        correct = scaled[np.arange(len(expected)), expected]
        return float((np.logaddexp.reduce(scaled, axis=1) - correct).mean())

    low, high = np.log(TEMPERATURE_RANGE).tolist()
    while high - low > 1e-4:
        left, right = high - GOLDEN_RATIO * (high - low), low + GOLDEN_RATIO * (high - low)
        low, high = (low, right) if cross_entropy(left) < cross_entropy(right) else (left, high)
    return round(float(np.exp((low + high) / 2)), 4)


def calibration_error(probabilities: np.ndarray, expected: np.ndarray) -> float:
    """The expected calibration error: how much confidence and accuracy differ, on average over ten bins of confidence.

    >>> calibration_error(np.array([[0.9, 0.1], [0.9, 0.1]]), np.array([0, 1]))     # sure to 90 %, right in 50 %
    0.4
    """
    confidence, is_right = probabilities.max(1), probabilities.argmax(1) == expected
    bins = np.minimum((confidence * NUM_BINS).astype(int), NUM_BINS - 1)
    gaps = [abs(confidence[bins == one].sum() - is_right[bins == one].sum()) for one in range(NUM_BINS)]
    return round(float(sum(gaps) / max(1, len(expected))), 6)
