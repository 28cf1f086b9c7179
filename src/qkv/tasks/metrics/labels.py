"""Metrics of labels: accuracy, the mean F1 of the classes, and Matthews' correlation."""

from collections.abc import Collection, Hashable, Sequence
from math import sqrt

import numpy as np

from qkv.tasks.metrics.class_counts import ClassCounts
from qkv.tasks.metrics.score import Score, mean_score


def accuracy(predictions: Sequence[Hashable], expected: Sequence[Hashable]) -> Score:
    """The fraction of labels that are right.

    >>> accuracy(["yes", "no", "no", "yes"], ["yes", "no", "yes", "yes"])
    0.75
    """
    return mean_score([float(a == b) for a, b in zip(predictions, expected, strict=True)])


def macro_f1(predictions: Sequence[Hashable], expected: Sequence[Hashable]) -> Score:
    """The mean F1 of all classes that are predicted or expected; each class has the same weight.

    >>> macro_f1(["a", "a", "b"], ["a", "b", "b"])
    0.6666666666666666
    """
    return label_counts(predictions, expected).macro_f1()


def label_counts(predictions: Sequence[Hashable], expected: Sequence[Hashable]) -> ClassCounts:
    """The counts of each class of texts that have one label."""
    return ClassCounts([(label,) for label in predictions], [(label,) for label in expected])


def label_set_scores(predictions: Sequence[Collection[str]], expected: Sequence[Collection[str]]) -> dict[str, Score]:
    """Scores of texts with several labels: F1 of all labels, the mean F1 of the labels, and whole sets that are right.

    >>> label_set_scores([["a"], ["a", "b"]], [["a"], ["b"]])
    {'micro_f1': 0.8, 'macro_f1': 0.8333333333333333, 'accuracy': 0.5}
    """
    counts = ClassCounts(predictions, expected)
    whole_sets = accuracy([frozenset(labels) for labels in predictions], [frozenset(labels) for labels in expected])
    return {"micro_f1": counts.micro_f1(), "macro_f1": counts.macro_f1(), "accuracy": whole_sets}


def matthews(predictions: Sequence[Hashable], expected: Sequence[Hashable]) -> Score:
    """Matthews' correlation for any number of classes (Gorodkin 2004): 1 is perfect, 0 is chance.

    It is 0 if only one class is predicted or expected.

    >>> matthews(["a", "a", "b", "b"], ["a", "a", "b", "b"])
    1.0
    """
    counts = label_counts(predictions, expected)

    def weighted(weights: np.ndarray) -> float:
        total = float(weights.sum())
        right, predicted, wanted = counts.count(weights)
        spread_predicted, spread_expected = (total * total - float(side @ side) for side in (predicted, wanted))
        if not spread_predicted or not spread_expected:
            return 0.0
        return (float(right.sum()) * total - float(predicted @ wanted)) / sqrt(spread_predicted * spread_expected)

    return Score(len(expected), weighted)
