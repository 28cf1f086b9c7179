"""Calibrate a classifier: divide its logits by a temperature, so that its probabilities match its accuracy.

A fully trained classifier is usually overconfident. One number, fitted on the validation data, corrects most of that
and changes no label (Guo et al. 2017, "On Calibration of Modern Neural Networks").

A threshold on the probability of the best class recognises texts that belong to no class. It is fitted if the
validation data has such texts (Larson et al. 2019, "An Evaluation Dataset for Intent Classification and Out-of-Scope
Prediction"): it gives the highest accuracy over all texts, where "out of scope" is one more label.

N texts, V classes
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from qkv.data.records import Record
from qkv.models import Config
from qkv.tasks.run.logits import class_names, class_probabilities, compute_logits, record_text
from qkv.tasks.scorer import has_input
from qkv.tasks.text_model import TextModel

MIN_RECORDS = 50
"""With fewer validation records, the temperature stays 1."""
MIN_OUT_OF_SCOPE = 10
"""With fewer validation records in scope or out of scope, no threshold is fitted."""
MAX_RECORDS = 1000
TEMPERATURE_RANGE = (0.05, 20.0)
GOLDEN_RATIO = (5**0.5 - 1) / 2
NUM_BINS = 10


def calibrate(
    model: TextModel,
    records: Sequence[Record],
    scope_records: Sequence[Record] = (),
    out_of_scope: str = "",
) -> tuple[Config, str]:
    """The model's config with a fitted temperature and threshold, and a note about each.

    The threshold is fitted on `scope_records`, some of which have the label `out_of_scope`. If there are too few
    records, the config is unchanged and the note is "".
    """
    config, on_temperature = calibrate_temperature(model, records)
    config, on_threshold = calibrate_threshold(replace(model, config=config), scope_records, out_of_scope)
    return config, "; ".join(filter(None, (on_temperature, on_threshold)))


def calibrate_temperature(model: TextModel, records: Sequence[Record]) -> tuple[Config, str]:
    """The model's config with a fitted temperature, and a note about it."""
    head = model.config.head
    step = max(1, -(-len(records) // MAX_RECORDS))  # spread over the file, which may be sorted by class
    logits, expected = labelled_logits(model, records[::step])
    expected, logits = expected[expected >= 0], logits[expected >= 0]
    if len(expected) < MIN_RECORDS or not np.isfinite(logits).all():
        return model.config, ""
    fitted = replace(model.config, head=replace(head, temperature=fit_temperature(logits, expected)))
    raw = replace(model.config, head=replace(head, temperature=1.0))
    before, after = (calibration_error(class_probabilities(one, logits), expected) for one in (raw, fitted))
    return fitted, (
        f"temperature {fitted.head.temperature:.3f}, fitted on {len(expected):,} validation records, on which it "
        f"changes the expected calibration error from {before:.3f} to {after:.3f}"
    )


def calibrate_threshold(model: TextModel, records: Sequence[Record], out_of_scope: str) -> tuple[Config, str]:
    """The model's config with a fitted threshold for texts out of scope, and a note about it."""
    logits, expected = labelled_logits(model, records, out_of_scope)
    num_outside = int((expected < 0).sum())
    if min(num_outside, len(expected) - num_outside) < MIN_OUT_OF_SCOPE or not np.isfinite(logits).all():
        few = f"no threshold was fitted: of {len(expected):,} validation records, {num_outside:,} are out of scope"
        return model.config, few if out_of_scope else ""
    probabilities = class_probabilities(model.config, logits)
    threshold = fit_threshold(probabilities, expected)
    accepted = probabilities.max(1) >= threshold
    accuracy = (accepted & (probabilities.argmax(1) == expected))[expected >= 0].mean()
    recall = 1 - accepted[expected < 0].mean()
    return replace(model.config, head=replace(model.config.head, threshold=threshold, out_of_scope=out_of_scope)), (
        f"threshold {threshold:.4f}, fitted on {len(expected):,} validation records, on which the accuracy in scope is "
        f"{accuracy:.3f} and {recall:.3f} of the {num_outside:,} records out of scope are recognised"
    )


def labelled_logits(
    model: TextModel, records: Sequence[Record], out_of_scope: str = ""
) -> tuple[np.ndarray, np.ndarray]:
    """The logits (N, V) and classes (N,) of the records with a known label; −1 is the class of `out_of_scope`.

    There are none if the model is not a classifier with one label for each text.
    """
    head = model.config.head
    numbers = {name: number for number, name in enumerate(class_names(model.config))}
    if out_of_scope:
        numbers[out_of_scope] = -1
    if head.kind != "classify" or head.multi_label or head.outputs < 2:
        records = ()
    usable = [record for record in records if str(record.fields.get("label")) in numbers and has_input(record)]
    logits, _ = compute_logits(model, [record_text(record) for record in usable])
    return logits, np.array([numbers[str(record.fields["label"])] for record in usable], np.int64)


def fit_threshold(probabilities: np.ndarray, expected: np.ndarray) -> float:
    """The threshold with the highest accuracy. Rejecting a text is right if it is out of scope (class −1).

    It lies between the probabilities of two texts. `probabilities` is (N, V); `expected` are the classes (N,).

    >>> fit_threshold(np.array([[0.9, 0.1], [0.2, 0.8], [0.4, 0.6]]), np.array([0, 1, -1]))
    0.7
    """
    best, is_right = probabilities.max(1), probabilities.argmax(1) == expected
    order = np.argsort(best)
    # Right predictions if the first n are rejected: texts out of scope among the n, and right classes among the others.
    rejected = np.concatenate([[0], np.cumsum(expected[order] < 0)])
    accepted = is_right.sum() - np.concatenate([[0], np.cumsum(is_right[order])])
    limits = np.concatenate([[0.0], best[order], [1.0]])
    can_split = limits[1:] > limits[:-1]  # equal probabilities are accepted or rejected together
    count = int(np.argmax(np.where(can_split, rejected + accepted, -1)))
    return 0.0 if count == 0 else float(limits[count] + limits[count + 1]) / 2


def fit_temperature(logits: np.ndarray, expected: np.ndarray) -> float:
    """The most probable temperature: logits (N, V), class numbers (N,).

    It minimises the cross-entropy of all texts plus a term that prefers temperatures near 1. Without this term, a model
    without errors on these texts would get the temperature 0. A golden-section search over log temperatures finds the
    minimum.

    >>> logits = np.array([[4.0, 0.0]] * 400)                   # sure of class 0, but right in three of four cases
    >>> round(4 / fit_temperature(logits, np.array([0, 0, 0, 1] * 100)), 1)     # log(3)
    1.1
    """

    def minus_log_posterior(log_temperature: float) -> float:
        scaled = logits.astype(np.float64) / np.exp(log_temperature)
        correct = scaled[np.arange(len(expected)), expected]
        return float((np.logaddexp.reduce(scaled, axis=1) - correct).sum() + log_temperature**2 / 2)

    low, high = np.log(TEMPERATURE_RANGE).tolist()
    while high - low > 1e-4:
        left, right = high - GOLDEN_RATIO * (high - low), low + GOLDEN_RATIO * (high - low)
        low, high = (low, right) if minus_log_posterior(left) < minus_log_posterior(right) else (left, high)
    return round(float(np.exp((low + high) / 2)), 4)


def calibration_error(probabilities: np.ndarray, expected: np.ndarray) -> float:
    """The expected calibration error: the mean difference of confidence and accuracy over ten bins of confidence.

    >>> calibration_error(np.array([[0.9, 0.1], [0.9, 0.1]]), np.array([0, 1]))     # sure to 90 %, right in 50 %
    0.4
    """
    confidence, is_right = probabilities.max(1), probabilities.argmax(1) == expected
    bins = np.minimum((confidence * NUM_BINS).astype(int), NUM_BINS - 1)
    gaps = [abs(confidence[bins == one].sum() - is_right[bins == one].sum()) for one in range(NUM_BINS)]
    return round(float(sum(gaps) / max(1, len(expected))), 6)
