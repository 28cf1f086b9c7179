"""Precision, recall and F1 of classes: labels, sets of labels, tags of words, and entities.

Each record has predicted items and expected items. An item belongs to a class, and is right if it is both predicted and
expected: the label of a text, the entity (0, 2, "PER") of a sentence.

N records, K classes
"""

from collections.abc import Callable, Collection, Hashable, Sequence
from dataclasses import dataclass

import numpy as np

from qkv.tasks.metrics.score import Score


@dataclass(frozen=True)
class ClassScores:
    """Precision, recall and F1 of a class. Each is 0 if it is undefined."""

    precision: float
    recall: float
    f1: float
    expected: int  # how often the class is expected, which is also called its support
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
