"""A report by class: precision, recall and F1 of each class, and which classes are confused."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from qkv.tasks.metrics.class_counts import ClassCounts, ClassScores

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

    >>> from qkv.tasks.metrics.labels import label_counts
    >>> report = make_class_report(label_counts("aab", "abb"), zip("aab", "abb"))
    >>> report.confusion, report.most_confused()
    ({'a': {'a': 1}, 'b': {'a': 1, 'b': 1}}, [('b', 'a', 1)])
    """
    confusion: dict[str, dict[str, int]] = {}
    for (expected, predicted), times in sorted(Counter((wanted, ours) for ours, wanted in pairs).items()):
        confusion.setdefault(expected, {})[predicted] = times
    return ClassReport(counts.by_class(), confusion)
