"""The value of a metric, which can be computed again with other weights of the records.

The bootstrap (`qkv.tasks.metrics.bootstrap`) needs the scores of thousands of random samples of the records. A sample
is described by its weights: how often it has each record. A metric computes the statistics of each record once, such as
the matching n-grams of a sentence, and its score is a function of their weighted sums.

N units (the records that are sampled: texts, sentences, queries)
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np


class Score(float):
    """The value of a metric: a float with `num_units` and `weighted`, the value as a function of the weights (N,)."""

    num_units: int
    weighted: Callable[[np.ndarray], float]

    def __new__(cls, num_units: int, weighted: Callable[[np.ndarray], float]) -> "Score":
        """Compute the value in which each unit counts once."""
        score = super().__new__(cls, weighted(np.ones(num_units)))
        score.num_units, score.weighted = num_units, weighted
        return score

    def __reduce__(self) -> Any:
        """A copy, and a score in another process, is a plain float."""
        return float, (float(self),)


def mean_score(values: Sequence[float] | np.ndarray) -> Score:
    """The mean of one value per unit; 0 if there is none.

    >>> mean_score([1.0, 0.0, 1.0, 1.0])
    0.75
    """
    numbers = np.asarray(values, np.float64)
    return ratio_score(numbers, np.ones(len(numbers)))


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
