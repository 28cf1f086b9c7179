"""The score of a model with its confidence interval, of baselines, by class, by length, and on the training data."""

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from random import Random
from typing import Any

import numpy as np

from qkv.data.records import Record
from qkv.models import Config
from qkv.tasks.baselines import applicable_baselines
from qkv.tasks.evaluate import has_option
from qkv.tasks.metrics.bootstrap import confidence_intervals
from qkv.tasks.metrics.notation import find_scale, name_metric
from qkv.tasks.scorer import TaskScorer
from qkv.tasks.table import find_task
from qkv.tasks.text_model import TextModel
from qkv.text.bm25 import normalized_words

TIMED_RECORDS, SAMPLE_GROWTH = 4, 8
"""The number of records that are predicted first, and the largest factor by which the sample grows."""
LENGTH_GROUPS = 4
MIN_GROUP = 10  # records in a group of similar lengths


@dataclass(frozen=True)
class ScoredRecord:
    """A record of the evaluation with the model's prediction."""

    location: str
    text: str
    predicted: str
    expected: str
    score: float  # 1 is right, 0 is wrong
    confidence: float | None = None
    baseline_prediction: str = ""  # what the best baseline predicts, if the task has classes


@dataclass(frozen=True)
class Measured:
    """The main metric of a model or a baseline, with its 95 % confidence interval if there is one."""

    name: str
    value: float
    interval: tuple[float, float] | None = None


@dataclass(frozen=True)
class LengthGroup:
    """The mean score of the records of similar length, in words."""

    shortest: int
    longest: int
    records: int
    score: float


@dataclass(frozen=True)
class ScoreReport:
    """The score of a model on records of its task."""

    metric: str
    model: Measured
    baselines: tuple[Measured, ...] = ()
    training: Measured | None = None  # the score on a sample of the training data
    num_records: int = 0
    num_usable: int = 0  # the number of records that could have been evaluated
    num_unusable: int = 0  # the number of records that lack a field of the task
    classes: dict[str, Any] = field(default_factory=dict)  # precision, recall, f1 and counts of each class
    confusion: dict[str, dict[str, int]] = field(default_factory=dict)  # expected class → predicted class → count
    lengths: tuple[LengthGroup, ...] = ()
    unit: str = "record"  # what was evaluated

    @property
    def best_baseline(self) -> Measured | None:
        """The baseline with the best score."""
        sign = -1 if self.metric == "loss" else 1
        return max(self.baselines, key=lambda one: sign * one.value, default=None)

    @property
    def is_below_baseline(self) -> bool:
        """Whether a baseline has a better score than the model."""
        sign = -1 if self.metric == "loss" else 1
        return self.best_baseline is not None and sign * self.model.value < sign * self.best_baseline.value

    def to_dict(self) -> dict[str, Any]:
        """The score for JSON, with the name of the metric in a sentence and the scale of its values."""
        return asdict(self) | {"metric_name": name_metric(self.metric), "scale": find_scale(self.metric)}


@dataclass
class ScoredPredictions:
    """The predictions of a model, their scores, and the predictions of baselines."""

    scorer: TaskScorer
    records: list[Record]
    predicted: list[Any]
    expected: list[Any]
    scores: list[float]
    confidences: list[float | None]
    baseline_predictions: dict[str, list[Any]] = field(default_factory=dict)  # the predictions of each baseline

    def scored_record(self, number: int, baseline: Sequence[Any] = ()) -> ScoredRecord:
        """One record, with the prediction of a second model if there is one."""
        record = self.records[number]
        return ScoredRecord(
            str(record.location),
            self.scorer.text(record),
            self.scorer.show(self.predicted[number], record),
            self.scorer.show(self.expected[number], record),
            self.scores[number],
            self.confidences[number],
            self.scorer.show(baseline[number], record) if len(baseline) else "",
        )


def find_scorer(config: Config, records: Sequence[Record], metric: str = "") -> TaskScorer | None:
    """The scorer of a model's task; None for language models, and if the records lack the fields of the task.

    `metric` is the metric that the recipe chose. It is the main metric if the scorer can compute it.
    """
    found = find_task(config).make_scorer(config, records)
    if found is None or not any(map(found.is_usable, records)):
        return None
    found.choose_metric(metric)
    return found


def predict_and_score(
    scorer: TaskScorer, model: TextModel, records: Sequence[Record], max_seconds: float, max_records: int, beam: int = 1
) -> ScoredPredictions:
    """Predict a random sample of the records, as large as the time and `max_records` allow.

    The sample grows from `TIMED_RECORDS`; the time that one sample takes decides the size of the next. Samples are
    random because files are often sorted by class, and have a fixed seed.
    """
    usable = [record for record in records if scorer.is_usable(record)]
    usable = Random(0).sample(usable, len(usable))[:max_records]
    deadline, size = time.monotonic() + max_seconds, TIMED_RECORDS
    task = find_task(model.config)
    options: Any = task.EvalOptions()
    options = replace(options, beam=beam) if has_option(task, "beam") else options
    while True:
        began = time.monotonic()
        made = scorer.predict(model, usable[:size], options, [])
        ended = time.monotonic()
        fitting = int(size * (deadline - ended) / max(ended - began, 1e-9))
        if size >= len(usable) or fitting <= size:
            break
        size = min(fitting, SAMPLE_GROWTH * size)
    predicted, expected = [one for one, _ in made], [scorer.expected(one) for one in usable[:size]]
    scores = scorer.score_each(predicted, expected)
    return ScoredPredictions(scorer, usable[:size], predicted, expected, scores, [confidence for _, confidence in made])


def add_baselines(predictions: ScoredPredictions, training: Sequence[Record], only_cheap: bool = False) -> None:
    """Add the predictions of the task's baselines, made from the training records."""
    usable = [record for record in training if predictions.scorer.is_usable(record)]
    chosen = applicable_baselines(predictions.scorer, predictions.records, only_cheap) if usable else {}
    for name, baseline in chosen.items():
        predictions.baseline_predictions[name] = baseline.predict(predictions.scorer, usable, predictions.records)


def measure(name: str, score: float) -> Measured:
    """A score with its interval."""
    interval = confidence_intervals({name: score}).get(name)
    return Measured(name, float(score), interval)


def make_score_report(
    predictions: ScoredPredictions, num_records: int, num_usable: int, training: ScoredPredictions | None
) -> ScoreReport:
    """The score of all predictions, and of groups of them."""
    scorer, predicted, expected = predictions.scorer, predictions.predicted, predictions.expected
    classes: dict[str, Any] = {}
    confusion: dict[str, dict[str, int]] = {}
    if scorer.has_classes:
        made = scorer.report_classes(predicted, expected)
        classes = {name: asdict(one) for name, one in made.classes.items()}
        confusion = made.confusion
    baselines = [
        measure(name, scorer.measure(made, expected)) for name, made in predictions.baseline_predictions.items()
    ]
    on_training = None if training is None else scorer.measure(training.predicted, training.expected)
    return ScoreReport(
        scorer.metric,
        model=measure("model", scorer.measure(predicted, expected)),
        baselines=tuple(sorted(baselines, key=lambda one: one.value)),
        training=None if on_training is None else measure("training", on_training),
        num_records=len(predictions.records),
        num_usable=num_usable,
        num_unusable=num_records - num_usable,
        classes=classes,
        confusion=confusion,
        lengths=group_lengths(predictions),
    )


def group_lengths(predictions: ScoredPredictions) -> tuple[LengthGroup, ...]:
    """The mean scores of the records in four groups of increasing length; () for few records."""
    lengths = np.array([len(normalized_words(predictions.scorer.text(record))) for record in predictions.records])
    if len(lengths) < LENGTH_GROUPS * MIN_GROUP:
        return ()
    bounds = np.unique(np.quantile(lengths, np.linspace(0, 1, LENGTH_GROUPS + 1)[1:-1]))
    groups = np.searchsorted(bounds, lengths, side="left")  # a length on a bound belongs to the shorter group
    scores = np.array(predictions.scores)
    return tuple(
        LengthGroup(
            int(lengths[groups == group].min()),
            int(lengths[groups == group].max()),
            int((groups == group).sum()),
            float(scores[groups == group].mean()),
        )
        for group in np.unique(groups)
    )


def to_points(metric: str, difference: float) -> float:
    """A difference of scores in points: one BLEU, one nat of a loss, or one percent."""
    return difference if metric == "loss" or find_scale(metric) == "0 to 100" else 100 * difference
