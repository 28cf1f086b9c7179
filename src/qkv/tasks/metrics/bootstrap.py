"""The bootstrap (Efron 1979): how much a score would vary on other test data of the same kind and size.

The records are resampled with replacement, and the metric is computed for each sample. The 95 % interval holds the
values between the 2.5th and the 97.5th percentile. Two models are compared on the same samples (Koehn 2004,
"Statistical Significance Tests for Machine Translation Evaluation"): the interval of their difference is narrower than
the intervals of their scores, because both models find the same records hard. The random numbers are seeded, so the
same predictions give the same intervals.

A sample is described by its weights: how often each record occurs in it. A metric computes the statistics of each
record once, such as the matching n-grams of a sentence, and its score is a function of their weighted sums.

R resamples, N units (the records that are sampled: texts, sentences, queries)
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from json import dumps
from typing import Any

import numpy as np

from qkv.errors import UsageError, shorten


class Score(float):
    """The value of a metric: a float with `num_units` and `weighted`, the value as a function of the weights (N,)."""

    num_units: int
    weighted: Callable[[np.ndarray], float]
    counts_records = False  # whether the value is the fraction of the records that are right

    def __new__(cls, num_units: int, weighted: Callable[[np.ndarray], float]) -> "Score":
        """Compute the value from the weighted function, with weight 1 for each unit."""
        score = super().__new__(cls, weighted(np.ones(num_units)))
        score.num_units, score.weighted = num_units, weighted
        return score

    def __reduce__(self) -> Any:
        """A copy of a score is a plain float, and so is a score that was sent to another process."""
        return float, (float(self),)


def mean_score(values: Sequence[float] | np.ndarray) -> Score:
    """The mean of one value per unit; 0 if there is none.

    >>> mean_score([1.0, 0.0, 1.0, 1.0])
    0.75
    """
    numbers = np.asarray(values, np.float64)
    score = ratio_score(numbers, np.ones(len(numbers)))
    score.counts_records = bool(np.isin(numbers, (0.0, 1.0)).all())
    return score


def ratio_score(numerators: Sequence[float] | np.ndarray, denominators: Sequence[float] | np.ndarray) -> Score:
    """The sum of the numerators divided by the sum of the denominators; 0 if the denominators are 0.

    >>> score = ratio_score([1, 0, 2], [2, 2, 4])      # for example, wrong words and words of three texts
    >>> score, score.weighted(np.array([2, 0, 1]))     # the first text twice, the second not at all
    (0.375, 0.5)
    """
    above, below = np.asarray(numerators, np.float64), np.asarray(denominators, np.float64)

    def weighted(weights: np.ndarray) -> float:
        total = float(weights @ below)
        return float(weights @ above) / total if total else 0.0

    return Score(len(above), weighted)


Interval = tuple[float, float]
"""The lower and the upper end of a 95 % confidence interval."""

DEFAULT_RESAMPLES = 1000
CONFIDENCE = 0.95
SEED = 0
WILSON = 1.96**2
"""The square of the standard score of the confidence."""


@dataclass(frozen=True)
class Difference:
    """The second model's score minus the first model's score, on the same records."""

    value: float
    interval: Interval
    p_value: float  # two-sided; the null hypothesis is that both models are equally good


def confidence_intervals(metrics: Mapping[str, float], resamples: int = DEFAULT_RESAMPLES) -> dict[str, Interval]:
    """The 95 % interval of each metric that is a `Score` of at least two units.

    >>> from qkv.tasks.metrics.labels import accuracy
    >>> confidence_intervals({"accuracy": accuracy("aabb" * 25, "aaba" * 25)})
    {'accuracy': (0.66, 0.83)}
    """
    found = {name: percentiles(values) for name, values in bootstrap(metrics, resamples).items()}
    return {name: widen(interval, metrics[name]) for name, interval in found.items()}


def widen(interval: Interval, score: float) -> Interval:
    """The interval of a score; where all records are right, or none, it is Wilson's score interval (1927).

    The resamples of such records are all the same, but other records would not all be.

    >>> widen((1.0, 1.0), mean_score([1.0] * 100))
    (0.963..., 1.0)
    """
    if not isinstance(score, Score) or not score.counts_records or interval not in ((0.0, 0.0), (1.0, 1.0)):
        return interval
    margin = WILSON / (score.num_units + WILSON)
    return (1 - margin, 1.0) if interval[0] else (0.0, margin)


def compare_metrics(
    one: Mapping[str, float], other: Mapping[str, float], resamples: int = DEFAULT_RESAMPLES
) -> dict[str, Difference]:
    """The differences of the metrics that two models have in common, by the paired bootstrap.

    Both must be scores of the same records, in the same order. The p-value is the fraction of resamples whose
    difference is at least as far from the mean difference as the observed difference is from 0.
    """
    common = [name for name in one if num_units(one[name]) == num_units(other.get(name, 0.0)) >= 2]
    samples = [bootstrap({name: metrics[name] for name in common}, resamples) for metrics in (one, other)]
    differences = {}
    for name in common if resamples else ():
        value, resampled = float(other[name]) - float(one[name]), samples[1][name] - samples[0][name]
        num_further = int((np.abs(resampled - resampled.mean()) >= abs(value)).sum())
        differences[name] = Difference(value, percentiles(resampled), (num_further + 1) / (resamples + 1))
    return differences


def hash_data(records: Iterable[Any]) -> str:
    """A short hash of evaluation records, as JSON values in their order."""
    found = blake2b(digest_size=16)
    for record in records:
        found.update(dumps(record, sort_keys=True, default=str).encode() + b"\n")
    return found.hexdigest()


def check_same_data(one: Any, other: Any) -> None:
    """Raise an error if two evaluations, which have a `data_hash`, are not of the same data."""
    if type(other) is not type(one):
        raise UsageError(
            f"compare: got {shorten(repr(other), 60)} ({type(other).__name__}); pass the result of evaluate for "
            f"another model or index ({type(one).__name__})"
        )
    if one.data_hash != other.data_hash:
        raise UsageError(
            "the evaluations are of different data, so their scores cannot be compared in pairs; evaluate both on the "
            "same records (or queries and judgements), in the same order"
        )


def bootstrap(metrics: Mapping[str, float], resamples: int, seed: int = SEED) -> dict[str, np.ndarray]:
    """The values (R,) of each metric, for resamples that depend only on the seed and the number of units.

    Metrics that are plain floats, or have a single unit, are left out.
    """
    found: dict[str, np.ndarray] = {}
    for count in sorted({num_units(score) for score in metrics.values()} - {0, 1}) if resamples else ():
        scores = {
            name: score for name, score in metrics.items() if isinstance(score, Score) and num_units(score) == count
        }
        found |= {name: np.zeros(resamples) for name in scores}
        for number, weights in enumerate(resample_weights(count, resamples, seed)):
            for name, score in scores.items():
                found[name][number] = score.weighted(weights)
    return {name: found[name] for name in metrics if name in found}


def resample_weights(num_units: int, resamples: int, seed: int = SEED) -> Iterator[np.ndarray]:
    """For each resample, how often each unit occurs in it, (N,)."""
    rng = np.random.default_rng(seed)
    for _ in range(resamples):
        yield np.bincount(rng.integers(num_units, size=num_units), minlength=num_units).astype(np.float64)


def percentiles(values: np.ndarray, confidence: float = CONFIDENCE) -> Interval:
    """The central interval that holds this fraction of the values."""
    low, high = np.quantile(values, [(1 - confidence) / 2, (1 + confidence) / 2]).tolist()
    return low, high


def num_units(score: float) -> int:
    """The number of units of a score; 0 for a plain float."""
    return score.num_units if isinstance(score, Score) else 0
