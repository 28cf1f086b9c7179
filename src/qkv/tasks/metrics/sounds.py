"""Metrics of sounds: spectrograms are compared after an alignment in time.

n and m frames of two sounds, F mel bands
"""

from collections.abc import Sequence

import numpy as np

from qkv.tasks.metrics.bootstrap import mean_score


def mel_correlation(predicted: Sequence[np.ndarray], expected: Sequence[np.ndarray]) -> float:
    """The mean correlation of the log-mel frames of two sounds, (n, F) and (m, F), that dynamic time warping pairs."""
    return mean_score([correlate_sounds(ours, theirs) for ours, theirs in zip(predicted, expected, strict=True)])


def duration_ratio(predicted: Sequence[np.ndarray], expected: Sequence[np.ndarray]) -> float:
    """The mean ratio of the shorter to the longer of two sounds: 1 if they have the same length."""
    lengths = [sorted((len(ours), len(theirs))) for ours, theirs in zip(predicted, expected, strict=True)]
    return mean_score([short / max(long, 1) for short, long in lengths])


def correlate_sounds(ours: np.ndarray, theirs: np.ndarray) -> float:
    """The correlation of the frames that `warp` pairs."""
    pairs = warp(np.abs(ours[:, None] - theirs[None]).mean(-1))
    a, b = ours[pairs[:, 0]].ravel(), theirs[pairs[:, 1]].ravel()
    a, b = a - a.mean(), b - b.mean()
    scale = float(np.linalg.norm(a) * np.linalg.norm(b))
    return float(a @ b) / scale if scale else 0.0


def warp(costs: np.ndarray) -> np.ndarray:
    """The pairs of frames (p, 2) of the cheapest path through costs (n, m), by dynamic time warping.

    >>> warp(np.array([[0.0, 9, 9], [9, 0, 0]])).tolist()
    [[0, 0], [1, 1], [1, 2]]
    """
    total = np.full((costs.shape[0] + 1, costs.shape[1] + 1), np.inf)
    total[0, 0] = 0.0
    for row, cost in enumerate(costs):
        before = np.minimum(total[row, 1:], total[row, :-1])  # from above, or diagonally
        sums = np.cumsum(cost)
        # total[j] = cost[j] + min(before[j], total[j − 1]), solved for all j at once
        total[row + 1, 1:] = sums + np.minimum.accumulate(before - (sums - cost))
    row, column = costs.shape
    pairs = []
    while row and column:
        pairs.append((row - 1, column - 1))
        steps = [total[row - 1, column - 1], total[row - 1, column], total[row, column - 1]]
        best = int(np.argmin(steps))
        row, column = row - (best != 2), column - (best != 1)
    return np.array(pairs[::-1])
