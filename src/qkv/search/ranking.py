"""Rankings of passages: the best k by score, and the fusion of several rankings."""

from collections.abc import Sequence

import numpy as np

Ranking = tuple[np.ndarray, np.ndarray]
"""Passage numbers (n,) and their scores (n,), the best first. Equal scores are in the order of passage numbers."""

FUSION_CONSTANT = 60
"""The constant of reciprocal rank fusion (Cormack, Clarke and Büttcher 2009)."""
FUSION_DEPTH = 1000
"""The number of passages of each ranking that are fused."""
FULL_WEIGHT_FRACTION = 0.25
"""The fraction of the highest possible BM25 score from which a passage has its full weight in the fusion."""


def top_k(scores: np.ndarray, k: int) -> np.ndarray:
    """The indices of the k highest scores, the highest first; if scores are equal, the lower index comes first.

    >>> top_k(np.array([1.0, 3.0, 3.0, 2.0]), 3).tolist()
    [1, 2, 3]
    """
    candidates = np.arange(len(scores))
    if k < len(scores):
        kth = np.partition(scores, len(scores) - k)[len(scores) - k]
        candidates = (scores >= kth).nonzero()[0]
    return candidates[np.argsort(-scores[candidates], kind="stable")[:k]]


def rank_matches(scores: np.ndarray, top: int) -> Ranking:
    """The best passages that share a word with the query, which means that their score is positive.

    >>> rank_matches(np.array([0.0, 1.5, 0.5]), 3)[0].tolist()
    [1, 2]
    """
    best = top_k(scores, top)
    best = best[scores[best] > 0]
    return best, scores[best]


def bm25_weights(scores: np.ndarray, max_score: float) -> np.ndarray:
    """The weights of BM25 matches in the fusion: lower for a passage with only a small part of the query's words.

    Ranks alone cannot distinguish a passage with all words of the query from a passage with only its word "of".

    >>> bm25_weights(np.array([8.0, 5.0, 2.0, 0.1]), max_score=20).tolist()
    [1.0, 1.0, 0.4, 0.02]
    """
    return np.minimum(1, scores / (FULL_WEIGHT_FRACTION * max_score))


def fuse(
    rankings: Sequence[np.ndarray],
    top: int,
    constant: int = FUSION_CONSTANT,
    weights: Sequence[np.ndarray | float] | None = None,
) -> Ranking:
    """Reciprocal rank fusion: a passage scores the sum of weight / (constant + rank) over the rankings that contain it.

    `weights` has, for each ranking, the weights of its passages. By default all are 1.

    >>> passages, scores = fuse([np.array([7, 3]), np.array([3, 5])], top=2)
    >>> passages.tolist(), [round(float(score), 4) for score in scores]
    ([3, 7], [0.0325, 0.0164])
    """
    passages = np.unique(np.concatenate(rankings)).astype(np.int64)
    scores = np.zeros(len(passages))
    for ranking, weight in zip(rankings, weights or [1.0] * len(rankings), strict=True):
        scores[np.searchsorted(passages, ranking)] += weight / (constant + np.arange(1, len(ranking) + 1))
    best = top_k(scores, top)
    return passages[best], scores[best]
