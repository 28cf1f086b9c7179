"""Metrics of labels: accuracy, precision, recall and F1 of classes, Matthews' correlation, and a report by class.

Each record has predicted items and expected items. An item belongs to a class, and is right if it is both predicted and
expected: the label of a text, one of several labels, the tag of a word, the entity (0, 2, "PER") of a sentence.

N records, K classes
"""

from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from math import sqrt
from typing import Any

import numpy as np

from qkv.tasks.metrics.bootstrap import Score, mean_score


@dataclass(frozen=True)
class ClassScores:
    """Precision, recall and F1 of a class. Each is 0 if it is undefined."""

    precision: float
    recall: float
    f1: float
    expected: int  # how often the class is expected (its support)
    predicted: int


class ClassCounts:
    """How often each class is predicted, expected, and both. `class_of` maps an item to its class."""

    def __init__(
        self,
        predictions: Sequence[Collection[Hashable]],
        expected: Sequence[Collection[Hashable]],
        *,
        class_of: Callable[..., Hashable] = lambda item: item,
    ) -> None:
        sides = [(set(ours), set(theirs)) for ours, theirs in zip(predictions, expected, strict=True)]
        self.num_units = len(sides)
        self.classes = sorted({class_of(item) for ours, theirs in sides for item in ours | theirs}, key=repr)
        number = {name: i for i, name in enumerate(self.classes)}
        items = (
            [ours & theirs for ours, theirs in sides],
            [ours for ours, _ in sides],
            [theirs for _, theirs in sides],
        )
        self._records = [np.repeat(np.arange(len(side)), [len(one) for one in side]) for side in items]
        self._classes = [np.array([number[class_of(item)] for one in side for item in one], np.int64) for side in items]

    def count(self, weights: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """How many items of each class are right, predicted and expected, (K,) each. Records have weights (N,)."""
        right, predicted, expected = (
            np.bincount(classes, weights[records], minlength=len(self.classes))
            for records, classes in zip(self._records, self._classes, strict=True)
        )
        return right, predicted, expected

    def micro_f1(self) -> Score:
        """F1 of all items together."""
        return Score(self.num_units, lambda weights: f1_score(*map(np.sum, self.count(weights))))

    def precision(self) -> Score:
        """The fraction of the predicted items that is right."""
        return Score(self.num_units, lambda weights: _divide(*map(np.sum, self.count(weights)[:2])))

    def recall(self) -> Score:
        """The fraction of the expected items that is right."""
        return Score(self.num_units, lambda weights: _divide(*map(np.sum, self.count(weights)[::2])))

    def macro_f1(self) -> Score:
        """The mean F1 of all classes that are predicted or expected; each class has the same weight."""

        def weighted(weights: np.ndarray) -> float:
            right, predicted, expected = self.count(weights)
            total = (predicted + expected)[predicted + expected > 0]
            return float((2 * right[predicted + expected > 0] / total).mean()) if len(total) else 0.0

        return Score(self.num_units, weighted)

    def by_class(self) -> dict[str, ClassScores]:
        """The scores of each class."""
        counted = zip(self.classes, *(side.tolist() for side in self.count(np.ones(self.num_units))), strict=True)
        return {
            str(name): ClassScores(
                _divide(right, predicted),
                _divide(right, expected),
                f1_score(right, predicted, expected),
                int(expected),
                int(predicted),
            )
            for name, right, predicted, expected in counted
        }


def f1_score(right: float, predicted: float, expected: float) -> float:
    """The harmonic mean of precision and recall; 0 if nothing is predicted or expected."""
    return _divide(2 * right, predicted + expected)


def _divide(part: float, total: float) -> float:
    return float(part / total) if total else 0.0


NO_CLASS = "(none)"
"""Stands for an entity that was not found, or that is not there."""


@dataclass(frozen=True)
class ClassReport:
    """The scores of each class, and the confusion matrix: expected class → predicted class → count, without zeros."""

    classes: dict[str, ClassScores]
    confusion: dict[str, dict[str, int]] = field(default_factory=dict)

    def most_confused(self, count: int = 5) -> list[tuple[str, str, int]]:
        """The most frequent confusions: expected class, predicted class, and how often."""
        return most_confused(self.confusion, count)

    def to_dict(self) -> dict[str, Any]:
        """JSON values."""
        return asdict(self)


def most_confused(confusion: Mapping[str, Mapping[str, int]], count: int) -> list[tuple[str, str, int]]:
    """The most frequent confusions of a matrix: expected class, predicted class, and how often."""
    pairs = [(a, b, times) for a, row in confusion.items() for b, times in row.items() if a != b]
    return sorted(pairs, key=lambda one: (-one[2], one[:2]))[:count]


def make_class_report(counts: ClassCounts, pairs: Iterable[tuple[str, str]] = ()) -> ClassReport:
    """The report on counted classes, with the confusion matrix of (predicted, expected) pairs.

    >>> report = make_class_report(label_counts("aab", "abb"), zip("aab", "abb"))
    >>> report.confusion, report.most_confused()
    ({'a': {'a': 1}, 'b': {'a': 1, 'b': 1}}, [('b', 'a', 1)])
    """
    confusion: dict[str, dict[str, int]] = {}
    for (expected, predicted), times in sorted(Counter((wanted, ours) for ours, wanted in pairs).items()):
        confusion.setdefault(expected, {})[predicted] = times
    return ClassReport(counts.by_class(), confusion)


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
