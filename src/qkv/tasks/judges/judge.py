"""A judge: predictions of a task, their score, and how to show them."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, ClassVar

from qkv.data.modalities import parse_number
from qkv.data.problems import InvalidRecord
from qkv.data.records import Record
from qkv.tasks import metrics
from qkv.tasks.task import TextModel

BATCH_SIZE = 32
Prediction = tuple[Any, float | None]
"""A prediction, and its confidence: a probability, or None if the model gives none."""


class Judge(ABC):
    """Predicts and scores the records of a task. `metric` is the task's main metric; a higher value is better."""

    metric: str
    measures: ClassVar[Mapping[str, Callable[[Sequence[Any], Sequence[Any]], float]]] = {}
    """The metrics that a recipe can choose instead: functions of the predictions and of what is expected."""
    has_classes: ClassVar[bool] = False
    input_fields: ClassVar[tuple[str, ...]] = ("text", "second")
    """The fields that the model reads; two records with equal values in them are duplicates."""

    @abstractmethod
    def is_usable(self, record: Record) -> bool:
        """Whether the record has everything that an evaluation needs."""

    @abstractmethod
    def expected(self, record: Record) -> Any:
        """What the model should predict."""

    @abstractmethod
    def predict(self, model: TextModel, records: Sequence[Record]) -> list[Prediction]:
        """The model's predictions."""

    def measure(self, predicted: Sequence[Any], expected: Sequence[Any]) -> float:
        """The main metric."""
        return self.measures[self.metric](predicted, expected)

    @abstractmethod
    def score_each(self, predicted: Sequence[Any], expected: Sequence[Any]) -> list[float]:
        """How right each prediction is: 1 is right, 0 is wrong."""

    def text(self, record: Record) -> str:
        """The input of the model, for a reader and for baselines."""
        values = [record.fields[name] for name in self.input_fields if record.fields.get(name)]
        return "\n".join(" ".join(map(str, one)) if isinstance(one, list) else str(one) for one in values)

    def show(self, value: Any, record: Record | None = None) -> str:
        """A prediction, or what is expected, for a reader; the record may have its words."""
        return str(value)

    def items(self, value: Any) -> set[Any]:
        """The items that precision and recall of the classes count; only if `has_classes`."""
        return {value}

    def count_classes(self, predicted: Sequence[Any], expected: Sequence[Any]) -> metrics.ClassCounts:
        """The counts of each class."""
        ours, theirs = ([*map(self.items, side)] for side in (predicted, expected))
        return metrics.ClassCounts(ours, theirs, class_of=self.class_of)

    def pair_classes(self, predicted: Any, expected: Any) -> list[tuple[str, str]]:
        """The predicted and the expected class of each item, for the confusion matrix."""
        return []

    def class_of(self, item: Any) -> Hashable:
        """The class of an item."""
        return item  # type: ignore[no-any-return]


def has_texts(record: Record, *names: str) -> bool:
    """Whether these fields are texts."""
    return all(isinstance(record.fields.get(name), str) for name in names)


def has_number(record: Record) -> bool:
    """Whether the score of a record is a number."""
    try:
        parse_number(record, "score")
    except InvalidRecord:
        return False
    return True
