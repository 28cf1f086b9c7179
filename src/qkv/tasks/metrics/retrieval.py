"""Metrics of search: nDCG, mean average precision, recall and the reciprocal rank, as trec_eval defines them.

A ranking is the documents that were found for a query, the best first. The judgements of a query map documents to their
relevance: 0 or less is not relevant, and nDCG rewards higher numbers more. A document without a judgement is not
relevant. Each query counts the same.
"""

from collections.abc import Hashable, Mapping, Sequence
from math import log2

from qkv.tasks.metrics.bootstrap import Score, mean_score

Rankings = Sequence[Sequence[Hashable]]
Judgements = Sequence[Mapping[Hashable, float]]


def ndcg(rankings: Rankings, judgements: Judgements, k: int = 10) -> Score:
    """The discounted cumulative gain (DCG) of the first k documents, divided by the DCG of the best possible ranking.

    >>> round(ndcg([["b", "x", "a"]], [{"a": 2, "b": 1}]), 4)     # (1 + 2 / log2(4)) / (2 + 1 / log2(3))
    0.7602
    """

    def gain(relevances: Sequence[float]) -> float:
        return sum(max(0.0, value) / log2(rank + 1) for rank, value in enumerate(relevances[:k], 1))

    values = []
    for found, judged in zip(rankings, judgements, strict=True):
        ideal = gain(sorted(judged.values(), reverse=True))
        values.append(gain([judged.get(document, 0.0) for document in found]) / ideal if ideal else 0.0)
    return mean_score(values)


def mean_average_precision(rankings: Rankings, judgements: Judgements) -> Score:
    """MAP: the mean of the precision at each relevant document; a relevant document that was not found counts as 0.

    >>> mean_average_precision([["a", "x", "b"]], [{"a": 1, "b": 1}])       # (1/1 + 2/3) / 2
    0.8333333333333333
    """
    values = []
    for found, relevant in zip(rankings, _relevant_documents(judgements), strict=True):
        ranks = [rank for rank, document in enumerate(found, 1) if document in relevant]
        precisions = [number / rank for number, rank in enumerate(ranks, 1)]
        values.append(sum(precisions) / len(relevant) if relevant else 0.0)
    return mean_score(values)


def recall_at(rankings: Rankings, judgements: Judgements, k: int = 100) -> Score:
    """The fraction of the relevant documents that is among the first k.

    >>> recall_at([["a", "x", "b"]], [{"a": 1, "b": 1}], k=2)
    0.5
    """
    pairs = zip(rankings, _relevant_documents(judgements), strict=True)
    return mean_score([len(relevant.intersection(found[:k])) / max(1, len(relevant)) for found, relevant in pairs])


def mean_reciprocal_rank(rankings: Rankings, judgements: Judgements, k: int = 10) -> Score:
    """The mean of 1 / rank of the first relevant document, or 0 if it is not among the first k.

    >>> mean_reciprocal_rank([["x", "a", "b"]], [{"a": 1, "b": 1}])
    0.5
    """
    values = []
    for found, relevant in zip(rankings, _relevant_documents(judgements), strict=True):
        ranks = [rank for rank, document in enumerate(found[:k], 1) if document in relevant]
        values.append(1 / ranks[0] if ranks else 0.0)
    return mean_score(values)


def _relevant_documents(judgements: Judgements) -> list[set[Hashable]]:
    return [{document for document, relevance in judged.items() if relevance > 0} for judged in judgements]
