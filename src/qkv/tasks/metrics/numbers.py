"""Metrics of numbers: correlations of scores, and a language model's loss as perplexity or bits."""

import math
from collections.abc import Sequence

import numpy as np

from qkv.tasks.metrics.bootstrap import Score


def pearson(one: Sequence[float], two: Sequence[float]) -> Score:
    """Pearson's correlation of two lists of numbers, −1 … 1; 0 if one of them is constant.

    >>> pearson([1, 2, 3], [2, 4, 6])
    1.0
    """
    a, b = _as_arrays(one, two)
    return Score(len(a), lambda weights: weighted_pearson(a, b, weights))


def spearman(one: Sequence[float], two: Sequence[float]) -> Score:
    """Spearman's rank correlation: Pearson's correlation of the ranks.

    >>> spearman([1, 2, 30], [10, 20, 21])
    1.0
    """
    groups = [np.unique(side, return_inverse=True)[1] for side in _as_arrays(one, two)]
    return Score(
        len(groups[0]),
        lambda weights: weighted_pearson(
            weighted_ranks(groups[0], weights), weighted_ranks(groups[1], weights), weights
        ),
    )


def weighted_pearson(a: np.ndarray, b: np.ndarray, weights: np.ndarray) -> float:
    """Pearson's correlation of two arrays whose elements occur with these frequencies, (N,) each."""
    occurs = weights > 0
    a, b, weights = a[occurs], b[occurs], weights[occurs]
    if len(a) == 0 or np.ptp(a) == 0 or np.ptp(b) == 0:
        return 0.0
    a, b = (side - np.average(side, weights=weights) for side in (a, b))
    a, b = a / np.abs(a).max(), b / np.abs(b).max()  # scaled, so that squares neither overflow nor underflow
    variances = float(weights @ (a * a)) * float(weights @ (b * b))
    return float(np.clip(float(weights @ (a * b)) / math.sqrt(variances), -1.0, 1.0))


def weighted_ranks(groups: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """The rank of each element, from 1, if it occurs with this frequency; equal elements share their mean rank.

    `groups` numbers the distinct values in increasing order.

    >>> weighted_ranks(np.array([0, 2, 1, 1]), np.ones(4)).tolist()      # of 10, 30, 20, 20
    [1.0, 4.0, 2.5, 2.5]
    """
    size = np.bincount(groups, weights)
    last = np.cumsum(size)
    mean: np.ndarray = ((last - size + 1 + last) / 2)[groups]
    return mean


def _as_arrays(one: Sequence[float], two: Sequence[float]) -> tuple[np.ndarray, np.ndarray]:
    if len(one) != len(two):
        raise ValueError(
            f"a correlation needs lists of the same length, but they have {len(one)} and {len(two)} numbers"
        )
    return np.asarray(one, np.float64), np.asarray(two, np.float64)


def perplexity(loss: float) -> float:
    """The perplexity of a loss in nats per token.

    >>> round(perplexity(math.log(50)), 6)
    50.0
    """
    return math.exp(loss) if loss < 700 else math.inf


def bits_per_unit(nats: float, units: float) -> float:
    """Convert a summed loss in nats to bits per unit (character or byte), which is comparable between tokenizers.

    >>> bits_per_unit(8 * math.log(2), 4)
    2.0
    """
    return nats / math.log(2) / units if units else 0.0
