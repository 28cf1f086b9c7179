"""Judges of classifiers: one class, or several labels."""

from collections.abc import Sequence
from functools import partial
from typing import Any, ClassVar

from qkv.data.records import Record
from qkv.models import Config
from qkv.tasks import metrics
from qkv.tasks.judges.judge import BATCH_SIZE, Judge, Prediction
from qkv.tasks.run.classify import OUT_OF_SCOPE, compute_logits, is_out_of_scope, make_prediction, record_text
from qkv.tasks.task import TextModel


def label_set_score(name: str, predicted: Sequence[Any], expected: Sequence[Any]) -> float:
    """One of the scores of texts with several labels."""
    return metrics.label_set_scores(predicted, expected)[name]


class LabelJudge(Judge):
    """One class for each text, or `OUT_OF_SCOPE`."""

    metric, has_classes = "accuracy", True
    measures: ClassVar = {"accuracy": metrics.accuracy, "macro_f1": metrics.macro_f1, "matthews": metrics.matthews}

    def __init__(self, config: Config) -> None:
        self.config = config

    def is_usable(self, record: Record) -> bool:
        """Text and label."""
        label = record.fields.get("label")
        return isinstance(record.fields.get("text"), str) and isinstance(label, str | int) and label is not True

    def expected(self, record: Record) -> str:
        """The label."""
        label = str(record.fields["label"])
        return OUT_OF_SCOPE if is_out_of_scope(self.config, label) else label

    def predict(self, model: TextModel, records: Sequence[Record]) -> list[Prediction]:
        """The most likely class and its probability."""
        logits, _ = compute_logits(model, [record_text(one) for one in records], BATCH_SIZE)
        made = [make_prediction(model.config, row, top=1) for row in logits]
        return [(OUT_OF_SCOPE if one.label is None else one.label, one.probability) for one in made]  # type: ignore[union-attr]

    def score_each(self, predicted: Sequence[str], expected: Sequence[str]) -> list[float]:
        """1 for the right class."""
        return [float(one == other) for one, other in zip(predicted, expected, strict=True)]

    def pair_classes(self, predicted: Any, expected: Any) -> list[tuple[str, str]]:
        """The two classes."""
        return [(predicted, expected)]


class LabelSetJudge(LabelJudge):
    """Several labels for each text."""

    metric = "micro_f1"
    measures: ClassVar = {name: partial(label_set_score, name) for name in ("micro_f1", "macro_f1", "accuracy")}

    def is_usable(self, record: Record) -> bool:
        """Text and one or several labels."""
        return isinstance(record.fields.get("text"), str) and isinstance(record.fields.get("label"), str | int | list)

    def expected(self, record: Record) -> Any:
        """The set of labels."""
        label = record.fields["label"]
        return frozenset(map(str, label if isinstance(label, list) else [label]))

    def predict(self, model: TextModel, records: Sequence[Record]) -> list[Prediction]:
        """The labels with a probability of at least 0.5."""
        logits, _ = compute_logits(model, [record_text(one) for one in records], BATCH_SIZE)
        return [(frozenset(make_prediction(model.config, row).labels), None) for row in logits]  # type: ignore[union-attr]

    def score_each(self, predicted: Sequence[Any], expected: Sequence[Any]) -> list[float]:
        """F1 of each set."""
        pairs = zip(predicted, expected, strict=True)
        return [2 * len(one & two) / (len(one) + len(two)) if one or two else 1.0 for one, two in pairs]

    def show(self, value: Any, record: Record | None = None) -> str:
        """The labels, separated by commas."""
        return ", ".join(sorted(value)) or "(none)"

    def items(self, value: Any) -> set[Any]:
        """The labels."""
        return set(value)

    def pair_classes(self, predicted: Any, expected: Any) -> list[tuple[str, str]]:
        """Sets of labels have no confusion matrix."""
        return []
