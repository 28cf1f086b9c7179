"""How the predictions of a task are compared with what records expect: metrics, single scores, classes, baselines.

A baseline is compared in the same way as the model.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, ClassVar

from qkv.data.modalities import parse_number
from qkv.data.problems import InvalidRecord
from qkv.data.records import Record
from qkv.tables import OpenTable
from qkv.tasks.metrics import ClassCounts, ClassReport, make_class_report
from qkv.tasks.text_model import TextModel
from qkv.train.watch import Sample

Prediction = tuple[Any, float | None]
"""A prediction, and its confidence: a probability, or None if the model gives none."""
Metric = Callable[[Sequence[Any], Sequence[Any]], float]
"""A function of the predicted and the expected values."""


@dataclass(frozen=True)
class MetricRow:
    """A metric registered from outside qkv, and the tasks that it is for. A higher value is better."""

    compute: Metric
    tasks: tuple[str, ...]


METRICS = OpenTable[MetricRow]("metric")
"""The metrics that packages outside qkv have registered."""


def own_metrics(task: str) -> dict[str, Metric]:
    """The metrics that were registered for a task."""
    return {name: row.compute for name, row in METRICS.items() if task in row.tasks}


@dataclass(frozen=True)
class Baseline:
    """A simple way to predict, which a model should beat: (scorer, training records, records) → predictions."""

    predict: Callable[["TaskScorer", Sequence[Record], Sequence[Record]], list[Any]]
    is_cheap: bool = False  # it takes almost no time, so it is in the last lines of `qkv train`
    applies: Callable[["TaskScorer", Sequence[Record]], bool] = lambda scorer, records: True


class TaskScorer(ABC):
    """Predicts records of a task, and scores the predictions. A higher main metric is better."""

    modality: ClassVar[str]  # modality of the predictions: text, label, labels, tags or number
    metric: str
    metrics: Mapping[str, Metric]  # all metrics that it can compute, the main one first
    selectable: ClassVar[tuple[str, ...]] = ()  # the metrics that a recipe can choose as the main one
    always_measured: ClassVar[tuple[str, ...]] = ()  # in addition to the requested metrics
    has_classes: bool = False
    input_fields: tuple[str, ...] = ("text", "second")
    """The fields that the model reads; two records with equal values in them are duplicates."""
    baselines: Mapping[str, Baseline] = {}

    @property
    def default_metrics(self) -> Sequence[str]:
        """The metrics that an evaluation computes if none are requested."""
        return list(self.metrics)

    @abstractmethod
    def is_usable(self, record: Record) -> bool:
        """Whether the record has everything that an evaluation needs."""

    @abstractmethod
    def expected(self, record: Record) -> Any:
        """What the model should predict."""

    @abstractmethod
    def predict(self, model: TextModel, records: Sequence[Record], options: Any, notes: list[str]) -> list[Prediction]:
        """The model's predictions. `options` are the options of the evaluation; `notes` say what was truncated."""

    def measure(self, predicted: Sequence[Any], expected: Sequence[Any]) -> float:
        """The main metric."""
        return self.metrics[self.metric](predicted, expected)

    def measure_all(
        self, names: Sequence[str], predicted: Sequence[Any], expected: Sequence[Any], records: Sequence[Record]
    ) -> dict[str, float]:
        """The named metrics."""
        return {name: self.metrics[name](predicted, expected) for name in names}

    def score_each(self, predicted: Sequence[Any], expected: Sequence[Any]) -> list[float]:
        """How right each prediction is: 1 is right, 0 is wrong. By default, only an equal value is right."""
        return [float(ours == theirs) for ours, theirs in zip(predicted, expected, strict=True)]

    def full_text(self, record: Record) -> str:
        """All inputs of the model as one text, to compare records with each other."""
        values = [record.fields[name] for name in self.input_fields if record.fields.get(name)]
        return "\n".join(" ".join(map(str, one)) if isinstance(one, list) else show_input(one) for one in values)

    def text(self, record: Record) -> str:
        """The input of the model as text, for display and for baselines. An image or a sound is shown as the name
        of its file."""
        if any(isinstance(record.fields.get(name), bytes) for name in self.input_fields):
            texts = (record.fields.get(name) for name in self.input_fields)
            return " ".join([str(record.location), *(text for text in texts if isinstance(text, str))])
        return self.full_text(record)

    def show(self, value: Any, record: Record | None = None) -> str:
        """A predicted or expected value as text; if it consists of tags, the record has the words."""
        return str(value)

    def make_sample(self, record: Record, predicted: Any, expected: Any) -> Sample:
        """A prediction for the log and for `qkv eval`."""
        texts = [value for name in self.input_fields if isinstance(value := record.fields.get(name), str)]
        if any(isinstance(record.fields.get(name), bytes) for name in self.input_fields):
            return Sample(self.text(record), self.show(predicted), self.show(expected), None)
        shown, joined = " ‖ ".join(texts), "\t".join(texts)
        return Sample(shown, self.show(predicted), self.show(expected), None if shown == joined else joined)

    def signatures(self, names: Sequence[str]) -> Mapping[str, str]:
        """The signatures with which libraries state how they computed metrics."""
        return {}

    def items(self, value: Any) -> set[Any]:
        """The items of a value that precision and recall count; only if `has_classes`."""
        return {value}

    def class_of(self, item: Any) -> Hashable:
        """The class of an item."""
        return item  # type: ignore[no-any-return]

    def pair_classes(self, predicted: Any, expected: Any) -> list[tuple[str, str]]:
        """The predicted and the expected class of each item, for the confusion matrix."""
        return []

    def report_classes(self, predicted: Sequence[Any], expected: Sequence[Any]) -> ClassReport:
        """The scores of each class, and the confusion matrix."""
        pairs = [pair for both in map(self.pair_classes, predicted, expected) for pair in both]
        ours, theirs = ([*map(self.items, side)] for side in (predicted, expected))
        return make_class_report(ClassCounts(ours, theirs, class_of=self.class_of), pairs)

    def choose_metric(self, name: str) -> None:
        """Make a metric the main one, if this is possible."""
        if name in (*self.selectable, *METRICS) and name in self.metrics:
            self.metric = name


def show_input(value: Any) -> str:
    """An input as text. The bytes of a file become a hash, so that equal files are equal texts."""
    return f"file {blake2b(value, digest_size=16).hexdigest()}" if isinstance(value, bytes) else str(value)


def has_texts(record: Record, *names: str) -> bool:
    """Whether these fields are texts."""
    return all(isinstance(record.fields.get(name), str) for name in names)


def has_input(record: Record) -> bool:
    """Whether a record has a text, or an image or a sound that can be decoded."""
    if not any(isinstance(record.fields.get(name), bytes) for name in ("image", "audio")):
        return has_texts(record, "text")
    from qkv.tasks.evaluation import find_bad_file

    return not find_bad_file(record)


def has_number(record: Record) -> bool:
    """Whether the score of a record is a number."""
    try:
        parse_number(record, "score")
    except InvalidRecord:
        return False
    return True


def set_f1(
    predicted: Sequence[set[Any] | frozenset[Any]], expected: Sequence[set[Any] | frozenset[Any]]
) -> list[float]:
    """F1 of each set; 1 if both are empty.

    >>> set_f1([{1, 2}, set()], [{2}, set()])
    [0.6666666666666666, 1.0]
    """
    pairs = zip(predicted, expected, strict=True)
    return [2 * len(ours & theirs) / (len(ours) + len(theirs)) if ours or theirs else 1.0 for ours, theirs in pairs]
