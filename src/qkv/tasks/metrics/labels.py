"""How well labels agree: accuracy, the mean F1 of the classes, and Matthews' correlation."""

from collections import Counter
from collections.abc import Hashable, Sequence
from math import sqrt


def accuracy(predictions: Sequence[Hashable], expected: Sequence[Hashable]) -> float:
    """The fraction of labels that are right.

    >>> accuracy(["yes", "no", "no", "yes"], ["yes", "no", "yes", "yes"])
    0.75
    """
    right = sum(a == b for a, b in zip(predictions, expected, strict=True))
    return right / len(predictions) if predictions else 0.0


def macro_f1(predictions: Sequence[Hashable], expected: Sequence[Hashable]) -> float:
    """The mean of the classes' F1, each predicted or expected class with the same weight.

    >>> macro_f1(["a", "a", "b"], ["a", "b", "b"])
    0.6666666666666666
    """
    right = Counter(a for a, b in zip(predictions, expected, strict=True) if a == b)
    times_said, times_expected = Counter(predictions), Counter(expected)
    classes = sorted(times_said.keys() | times_expected.keys(), key=repr)  # a fixed order: sums of floats depend on it
    scores = [2 * right[one] / (times_said[one] + times_expected[one]) for one in classes]
    return sum(scores) / len(scores) if scores else 0.0


def matthews(predictions: Sequence[Hashable], expected: Sequence[Hashable]) -> float:
    """Matthews' correlation for any number of classes (Gorodkin 2004): 1 is perfect, 0 no better than chance.

    0 if only one class is predicted or expected.

    >>> matthews(["a", "a", "b", "b"], ["a", "a", "b", "b"])
    1.0
    """
    count, right = len(predictions), sum(a == b for a, b in zip(predictions, expected, strict=True))
    times_said, times_expected = Counter(predictions), Counter(expected)
    by_chance = sum(times_said[one] * times_expected[one] for one in times_said)
    spread_said = count * count - sum(times * times for times in times_said.values())
    spread_expected = count * count - sum(times * times for times in times_expected.values())
    if not spread_said or not spread_expected:
        return 0.0
    return (right * count - by_chance) / sqrt(spread_said * spread_expected)
