"""The statistics of a few paired measurements, one for each seed.

The difference of two variants is computed for each seed, because runs with the same seed share the data, its order, and
the initial values of the weights that both models have. The interval is Student's t interval, which is wide for few
seeds: ±12.7 standard errors with two seeds.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist, fmean, stdev

CONFIDENCE = 0.95
POWER = 0.8
MAX_SEEDS = 1000
"""`seeds_needed` looks no further."""


@dataclass(frozen=True)
class PairedDifference:
    """The mean of the differences of some seeds, and its interval."""

    mean: float
    sd: float | None  # standard deviation of the differences; None for one seed
    interval: tuple[float, float] | None  # None for one seed, whose spread is unknown
    p_value: float | None  # two-sided; the null hypothesis is that there is no difference
    seeds: int
    seeds_needed: int | None  # needed to settle a difference of this size; None: more than `MAX_SEEDS`, or unknown

    @property
    def is_settled(self) -> bool:
        """Whether the interval excludes 0."""
        return self.interval is not None and (self.interval[0] > 0 or self.interval[1] < 0)


def compare_pairs(ours: Sequence[float], theirs: Sequence[float], confidence: float = CONFIDENCE) -> PairedDifference:
    """Compare the values of two variants for the same seeds: the mean of ours − theirs.

    >>> found = compare_pairs([1.0, 2.0, 3.5], [0.5, 1.0, 2.0])
    >>> found.mean, [round(end, 2) for end in found.interval], found.is_settled
    (1.0, [-0.24, 2.24], False)
    """
    differences = [a - b for a, b in zip(ours, theirs, strict=True)]
    count, mean = len(differences), fmean(differences)
    if count < 2:
        return PairedDifference(mean, None, None, None, count, None)
    sd = stdev(differences)
    error = sd / math.sqrt(count)
    reach = t_quantile((1 + confidence) / 2, count - 1) * error
    p_value = 0.0 if not error and mean else 1.0 if not error else 2 * (1 - t_cdf(abs(mean) / error, count - 1))
    return PairedDifference(mean, sd, (mean - reach, mean + reach), p_value, count, seeds_needed(mean, sd, confidence))


def seeds_needed(mean: float, sd: float, confidence: float = CONFIDENCE) -> int | None:
    """How many seeds settle a difference of this size with a probability of 80 %, if it is real.

    >>> seeds_needed(1.0, 1.0), seeds_needed(0.1, 1.0), seeds_needed(0.0, 1.0)
    (10, 787, None)
    """
    if not mean:
        return None
    normal = NormalDist().inv_cdf((1 + confidence) / 2) + NormalDist().inv_cdf(POWER)
    first = min(MAX_SEEDS + 1.0, (normal * sd / mean) ** 2)  # the quantiles of t are larger
    for count in range(max(2, int(first)), MAX_SEEDS + 1):
        quantiles = t_quantile((1 + confidence) / 2, count - 1) + t_quantile(POWER, count - 1)
        if quantiles * sd / math.sqrt(count) <= abs(mean):
            return count
    return None


def mean_and_sd(values: Sequence[float]) -> tuple[float, float | None]:
    """The mean, and the standard deviation if there are two values or more."""
    return fmean(values), stdev(values) if len(values) > 1 else None


def t_cdf(t: float, freedom: int) -> float:
    """The cumulative distribution of Student's t, by the finite series for whole degrees of freedom.

    Abramowitz and Stegun, 26.7.3 and 26.7.4. `t` is at least 0.

    >>> round(t_cdf(12.706, 1), 4), round(t_cdf(4.3027, 2), 4), round(t_cdf(2.2281, 10), 4)
    (0.975, 0.975, 0.975)
    """
    theta = math.atan2(t, math.sqrt(freedom))
    cos, sin = math.cos(theta), math.sin(theta)
    if freedom % 2:
        term, total = cos, 0.0
        for k in range(1, freedom - 1, 2):
            total += term
            term *= cos * cos * (k + 1) / (k + 2)
        inside = 2 / math.pi * (theta + sin * total)
    else:
        term, total = 1.0, 0.0
        for k in range(0, freedom - 1, 2):
            total += term
            term *= cos * cos * (k + 1) / (k + 2)
        inside = sin * total
    return 0.5 + inside / 2


def t_quantile(probability: float, freedom: int) -> float:
    """The value that Student's t exceeds with a probability of 1 − `probability`, which is at least 0.5.

    >>> round(t_quantile(0.975, 2), 3), round(t_quantile(0.975, 1000), 3)
    (4.303, 1.962)
    """
    low, high = 0.0, 1.0
    while t_cdf(high, freedom) < probability:
        high *= 2
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if t_cdf(middle, freedom) < probability else (low, middle)
    return (low + high) / 2
