"""Metrics of numbers: correlations of scores, and a language model's loss as perplexity or bits."""

import math
from collections.abc import Sequence

import numpy as np


def pearson(one: Sequence[float], two: Sequence[float]) -> float:
    """Pearson's correlation of two lists of numbers, −1 … 1; 0 if one of them is constant.

    >>> pearson([1, 2, 3], [2, 4, 6])
    1.0
    """
    a, b = (np.asarray(values, np.float64) for values in (one, two))
    if len(a) != len(b):
        raise ValueError(f"a correlation needs lists of the same length, but they have {len(a)} and {len(b)} numbers")
    if len(a) == 0 or np.ptp(a) == 0 or np.ptp(b) == 0:
        return 0.0
    a, b = a - a.mean(), b - b.mean()
    a, b = a / np.abs(a).max(), b / np.abs(b).max()  # scaled, so that squares neither overflow nor underflow
    return float(np.clip((a @ b) / math.sqrt((a @ a) * (b @ b)), -1.0, 1.0))


def spearman(one: Sequence[float], two: Sequence[float]) -> float:
    """Spearman's rank correlation: Pearson's correlation of the ranks.

    >>> spearman([1, 2, 30], [10, 20, 21])
    1.0
    """
    return pearson(ranks(one), ranks(two))


def ranks(values: Sequence[float]) -> list[float]:
    """The rank of each number, from 1; equal numbers share their mean rank.

    >>> ranks([10, 30, 20, 20])
    [1.0, 4.0, 2.5, 2.5]
    """
    numbers = np.asarray(values, np.float64)
    _, group, size = np.unique(numbers, return_inverse=True, return_counts=True)
    last = np.cumsum(size)
    mean: list[float] = ((last - size + 1 + last) / 2)[group].tolist()
    return mean


def perplexity(loss: float) -> float:
    """The perplexity of a loss in nats per token.

    >>> round(perplexity(math.log(50)), 6)
    50.0
    """
    return math.exp(loss) if loss < 700 else math.inf


def bits_per_unit(nats: float, units: int) -> float:
    """Convert a summed loss in nats to bits per unit (character or byte), which is comparable between tokenizers.

    >>> bits_per_unit(8 * math.log(2), 4)
    2.0
    """
    return nats / math.log(2) / units if units else 0.0
