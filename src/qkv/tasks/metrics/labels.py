"""Metrics of labels: accuracy, the mean F1 of the classes, and Matthews' correlation."""

from collections import Counter
from collections.abc import Collection, Hashable, Sequence
from math import sqrt


def accuracy(predictions: Sequence[Hashable], expected: Sequence[Hashable]) -> float:
    """The fraction of labels that are right.

    >>> accuracy(["yes", "no", "no", "yes"], ["yes", "no", "yes", "yes"])
    0.75
    """
    right = sum(a == b for a, b in zip(predictions, expected, strict=True))
    return right / len(predictions) if predictions else 0.0


def macro_f1(predictions: Sequence[Hashable], expected: Sequence[Hashable]) -> float:
    """The mean F1 of all classes that are predicted or expected; each class has the same weight.

    >>> macro_f1(["a", "a", "b"], ["a", "b", "b"])
    0.6666666666666666
    """
    right = Counter(a for a, b in zip(predictions, expected, strict=True) if a == b)
    times_predicted, times_expected = Counter(predictions), Counter(expected)
    classes = sorted(
        times_predicted.keys() | times_expected.keys(), key=repr
    )  # in a fixed order, on which a sum of floats depends
    scores = [2 * right[one] / (times_predicted[one] + times_expected[one]) for one in classes]
    return sum(scores) / len(scores) if scores else 0.0


def label_set_scores(predictions: Sequence[Collection[str]], expected: Sequence[Collection[str]]) -> dict[str, float]:
    """Scores of texts with several labels: F1 of all labels, the mean F1 of the labels, and whole sets that are right.

    >>> label_set_scores([["a"], ["a", "b"]], [["a"], ["b"]])
    {'micro_f1': 0.8, 'macro_f1': 0.8333333333333333, 'accuracy': 0.5}
    """
    pairs = list(zip(map(frozenset, predictions), map(frozenset, expected), strict=True))
    right = Counter(one for ours, theirs in pairs for one in ours & theirs)
    times_predicted = Counter(one for ours, _ in pairs for one in ours)
    times_expected = Counter(one for _, theirs in pairs for one in theirs)
    total = times_predicted.total() + times_expected.total()
    each = [
        2 * right[one] / (times_predicted[one] + times_expected[one])
        for one in sorted(times_predicted.keys() | times_expected.keys())
    ]
    return {
        "micro_f1": 2 * right.total() / total if total else 0.0,
        "macro_f1": sum(each) / len(each) if each else 0.0,
        "accuracy": accuracy([ours for ours, _ in pairs], [theirs for _, theirs in pairs]),
    }


def matthews(predictions: Sequence[Hashable], expected: Sequence[Hashable]) -> float:
    """Matthews' correlation for any number of classes (Gorodkin 2004): 1 is perfect, 0 is chance.

    It is 0 if only one class is predicted or expected.

    >>> matthews(["a", "a", "b", "b"], ["a", "a", "b", "b"])
    1.0
    """
    count, right = len(predictions), sum(a == b for a, b in zip(predictions, expected, strict=True))
    times_predicted, times_expected = Counter(predictions), Counter(expected)
    by_chance = sum(times_predicted[one] * times_expected[one] for one in times_predicted)
    spread_predicted = count * count - sum(times * times for times in times_predicted.values())
    spread_expected = count * count - sum(times * times for times in times_expected.values())
    if not spread_predicted or not spread_expected:
        return 0.0
    return (right * count - by_chance) / sqrt(spread_predicted * spread_expected)
