"""Classify: predict the class of a text, a pair of texts, an image or a sound; or a score, with a single output."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, Literal

import numpy as np

from qkv.data.modalities import parse_number, reads_files
from qkv.data.problems import InvalidRecord
from qkv.data.records import Record
from qkv.errors import UsageError, count_nouns, shorten
from qkv.models import Config
from qkv.tasks import metrics
from qkv.tasks.baselines import (
    BASELINE_NAME,
    count_common_words,
    has_images,
    has_pairs,
    has_sklearn,
    predict_linear,
    predict_most_frequent,
    predict_nearest,
    predict_nearest_image,
    reads_texts,
)
from qkv.tasks.evaluation import EvaluationOptions, select_decodable, select_usable
from qkv.tasks.record_task import RecordTask
from qkv.tasks.results import Result, Row, one_line, probability_rows
from qkv.tasks.run.example_batches import TextOrPair, as_tuple
from qkv.tasks.run.logits import class_names, class_probabilities, compute_logits, compute_mean_logits, record_text
from qkv.tasks.run.long_texts import add_truncation_note, handle_long_texts
from qkv.tasks.scorer import Baseline, Metric, Prediction, TaskScorer, has_input, has_number, set_f1
from qkv.tasks.starters.starter import BERT_CHECKPOINT, SMOOTHING, Starter
from qkv.tasks.task import TaskOptions
from qkv.tasks.text_model import TextModel
from qkv.values import Limits

OUT_OF_SCOPE = "(out of scope)"
CLASSIFIED_FIELDS = ("text", "second", "image", "audio")


@dataclass(frozen=True, kw_only=True)
class ClassifyOptions(TaskOptions):
    """Options of `m.classify`."""

    top: Annotated[int, Limits(0, 1_000_000), "The number of classes to list; 0: all."] = 0
    threshold: Annotated[
        float | None,
        Limits(0, 1),
        "The probability that a class must have; below it, the text is out of scope. Default: as fitted in training.",
    ] = None
    too_long: Annotated[
        Literal["error", "split", "truncate"],
        'For a text with too many tokens: "error", "truncate", or "split", which takes the mean of its parts.',
    ] = "error"


@dataclass(frozen=True, kw_only=True)
class ClassifyEvaluation(EvaluationOptions):
    """Options of an evaluation of classes or tags."""

    check_classes: bool = True  # raise an error if none of the labels or tags is a class of the model


@dataclass(frozen=True, repr=False)
class ClassPrediction(Result):
    """The most likely class and its probability, and the probabilities of all classes, the most likely first.

    `label` is None if no class reaches the threshold: the text is out of scope. The most likely class is then
    `rejected_label`. An empty text has the label None and no probabilities.
    """

    label: Annotated[
        str | None, "The most likely class; null if no class reaches the threshold, or if the text is empty."
    ]
    probability: Annotated[float, "The probability of the most likely class, even if it is below the threshold."]
    probabilities: Annotated[dict[str, float], "The classes with their probabilities, the most likely first."]
    rejected_label: Annotated[str | None, "The most likely class, if below the threshold; else null."] = None

    def summary(self) -> str:
        if self.label is None:
            if self.rejected_label is None:
                return "(none)\tempty text"
            return f"(none)\tbelow the threshold: {one_line(self.rejected_label)} {self.probability:.4f}"
        return f"{one_line(self.label)}\t{self.probability:.4f}"

    def rows(self) -> list[Row]:
        return probability_rows(self.probabilities)


@dataclass(frozen=True, repr=False)
class LabelsPrediction(Result):
    """The labels whose probability reaches the threshold, and the probabilities of all labels."""

    labels: Annotated[list[str], "The labels, the most likely first; empty if none reaches the threshold."]
    probabilities: Annotated[dict[str, float], "Labels with their probabilities, which need not add up to 1."]

    def summary(self) -> str:
        return ", ".join(map(one_line, self.labels)) or "(none)"

    def rows(self) -> list[Row]:
        return probability_rows(self.probabilities)


@dataclass(frozen=True, repr=False)
class ScorePrediction(Result):
    """A number, predicted by a head with a single output."""

    score: Annotated[float, "The score on the scale of the training data, divided by `data.max_score`."]

    def summary(self) -> str:
        return f"{self.score:.6g}"


def scope_score(name: str, predictions: Sequence[str], targets: Sequence[str]) -> float:
    """The accuracy of the texts in scope, or the fraction of the other texts that is rejected."""
    is_right, is_outside = np.array(predictions) == np.array(targets), np.array(targets) == OUT_OF_SCOPE
    counted = is_outside if name == "out_of_scope_recall" else ~is_outside
    return metrics.ratio_score(is_right & counted, counted)


LABEL_METRICS: dict[str, Metric] = {
    "accuracy": metrics.accuracy,
    "macro_f1": metrics.macro_f1,
    "matthews": metrics.matthews,
}
SCOPE_METRICS: dict[str, Metric] = {
    name: partial(scope_score, name) for name in ("in_scope_accuracy", "out_of_scope_recall")
}


class LabelScorer(TaskScorer):
    """One class for each text, or `OUT_OF_SCOPE`."""

    modality, metric, has_classes = "label", "accuracy", True
    input_fields = CLASSIFIED_FIELDS
    selectable = tuple(LABEL_METRICS)
    metrics: Mapping[str, Metric] = LABEL_METRICS | SCOPE_METRICS
    baselines: Mapping[str, Baseline] = {
        "most frequent class": Baseline(predict_most_frequent, is_cheap=True),
        "nearest text (BM25)": Baseline(predict_nearest, applies=reads_texts),
        BASELINE_NAME: Baseline(predict_linear, applies=has_sklearn),
        "nearest image (pixels)": Baseline(predict_nearest_image, applies=has_images),
    }

    def __init__(self, config: Config, records: Sequence[Record]) -> None:
        self.config = config
        has_outside = any(is_out_of_scope(config, str(record.fields.get("label"))) for record in records)
        self.metrics = LABEL_METRICS | (SCOPE_METRICS if has_outside else {})

    def is_usable(self, record: Record) -> bool:
        label = record.fields.get("label")
        return has_input(record) and isinstance(label, str | int) and label is not True

    def expected(self, record: Record) -> str:
        label = str(record.fields["label"])
        return OUT_OF_SCOPE if is_out_of_scope(self.config, label) else label

    def predict(self, model: TextModel, records: Sequence[Record], options: Any, notes: list[str]) -> list[Prediction]:
        made: list[Any] = [make_prediction(self.config, row, top=1) for row in predict_logits(model, records, notes)]
        return [(OUT_OF_SCOPE if one.label is None else one.label, one.probability) for one in made]

    def pair_classes(self, predicted: Any, expected: Any) -> list[tuple[str, str]]:
        return [(predicted, expected)]


class LabelSetScorer(TaskScorer):
    """Several labels for each text."""

    modality, metric, has_classes = "labels", "micro_f1", True
    input_fields = CLASSIFIED_FIELDS
    selectable = ("micro_f1", "macro_f1", "accuracy")
    metrics: Mapping[str, Metric] = {
        name: partial(lambda name, ours, theirs: metrics.label_set_scores(ours, theirs)[name], name)
        for name in selectable
    }
    baselines: Mapping[str, Baseline] = {
        "most frequent labels": Baseline(predict_most_frequent, is_cheap=True),
        "nearest text (BM25)": Baseline(predict_nearest, applies=reads_texts),
    }

    def is_usable(self, record: Record) -> bool:
        return has_input(record) and isinstance(record.fields.get("label"), str | int | list)

    def expected(self, record: Record) -> frozenset[str]:
        return frozenset(record_labels(record))

    def predict(self, model: TextModel, records: Sequence[Record], options: Any, notes: list[str]) -> list[Prediction]:
        made: list[Any] = [make_prediction(model.config, row) for row in predict_logits(model, records, notes)]
        return [(frozenset(one.labels), None) for one in made]

    def score_each(self, predicted: Sequence[Any], expected: Sequence[Any]) -> list[float]:
        return set_f1(predicted, expected)

    def show(self, value: Any, record: Record | None = None) -> str:
        return ", ".join(sorted(value)) or "(none)"

    def items(self, value: Any) -> set[Any]:
        return set(value)


class NumberScorer(TaskScorer):
    """A score for each text or pair of texts, compared by a correlation."""

    modality, metric = "number", "spearman"
    input_fields: tuple[str, ...] = CLASSIFIED_FIELDS
    selectable = ("spearman", "pearson")
    metrics: Mapping[str, Metric] = {"spearman": metrics.spearman, "pearson": metrics.pearson}
    baselines: Mapping[str, Baseline] = {
        "nearest text (BM25)": Baseline(predict_nearest, applies=reads_texts),
        "words in common": Baseline(count_common_words, applies=has_pairs),
    }

    def is_usable(self, record: Record) -> bool:
        return has_input(record) and has_number(record)

    def expected(self, record: Record) -> float:
        return parse_number(record, "score")

    def predict(self, model: TextModel, records: Sequence[Record], options: Any, notes: list[str]) -> list[Prediction]:
        return [(float(row[0]), None) for row in predict_logits(model, records, notes)]

    def score_each(self, predicted: Sequence[float], expected: Sequence[float]) -> list[float]:
        """1 minus the difference of the ranks, as a fraction of all ranks."""
        ours, theirs = ranks(predicted), ranks(expected)
        last = max(1, len(ours) - 1)
        return [1 - abs(first - second) / last for first, second in zip(ours, theirs, strict=True)]

    def show(self, value: float, record: Record | None = None) -> str:
        return f"{value:.3g}"


def predict_logits(model: TextModel, records: Sequence[Record], notes: list[str]) -> np.ndarray:
    """The logits of the records' texts. Texts are truncated as in training; a note counts truncated texts."""
    logits, lengths = compute_logits(model, [record_text(record) for record in records])
    add_truncation_note(notes, lengths, model.config)
    return logits


def note_unknown_labels(config: Config, found: Collection[str], notes: list[str]) -> None:
    """Note the labels that the model does not have: their texts are out of scope, or count as wrong."""
    unknown = sorted(set(found) - set(class_names(config)))
    outside = [label for label in unknown if is_out_of_scope(config, label)]
    if outside:
        notes.append(f"out of scope, because the model does not have these labels: {format_names(outside)}")
    if wrong := [label for label in unknown if label not in outside]:
        may_be_outside = len(wrong) == 1 and not config.head.out_of_scope
        advice = f'; if its texts belong to no class, train with objective.out_of_scope="{wrong[0]}"'
        note = f"labels that the model does not have, counted as wrong: {format_names(wrong)}"
        notes.append(note + (advice if may_be_outside else ""))


def ranks(values: Sequence[float]) -> list[int]:
    """The rank of each value, from 0.

    >>> ranks([0.5, 0.1, 0.9])
    [1, 0, 2]
    """
    order = sorted(range(len(values)), key=lambda i: values[i])
    found = [0] * len(values)
    for rank, i in enumerate(order):
        found[i] = rank
    return found


def empty_prediction(config: Config) -> ClassPrediction | LabelsPrediction:
    """The prediction for an empty text: no class, or no labels."""
    return LabelsPrediction([], {}) if config.head.multi_label else ClassPrediction(None, 0.0, {})


def make_prediction(
    config: Config, logits: np.ndarray, top: int = 0, threshold: float | None = None
) -> ClassPrediction | LabelsPrediction | ScorePrediction:
    """Convert the logits of one text to a prediction."""
    if config.head.is_regression:
        return ScorePrediction(float(logits[0]))
    probabilities = class_probabilities(config, logits[None])[0]
    names = class_names(config)
    order = (-probabilities).argsort(kind="stable")
    shown = {names[i]: float(probabilities[i]) for i in order[: top or None]}
    if config.head.multi_label:
        limit = 0.5 if threshold is None else threshold
        return LabelsPrediction([names[i] for i in order if probabilities[i] >= limit], shown)
    best = int(order[0])
    is_in_scope = not probabilities[best] < (config.head.threshold if threshold is None else threshold)
    label, rejected = (names[best], None) if is_in_scope else (None, names[best])
    return ClassPrediction(label, float(probabilities[best]), shown, rejected)


def is_out_of_scope(config: Config, label: str) -> bool:
    """Whether a label means "none of the classes" for a model with a threshold.

    A model that does not store this label treats every label that is not one of its classes in this way.
    """
    head = config.head
    return head.threshold > 0 and (
        label == head.out_of_scope if head.out_of_scope else label not in class_names(config)
    )


def check_classes(found: Collection[str], classes: Sequence[str], field: str) -> None:
    """Raise an error if no label or tag of the data is a class of the model. `field` is the field of the labels or
    tags.
    """
    if found and not set(found) & set(classes):
        name = field.removesuffix("s")
        raise UsageError(
            f"none of the {name}s is a class of this model: the {name}s are {format_names(sorted(found))}, but the "
            f"classes are {format_names(classes)}; is this the right column? Choose another with --columns "
            f"{field}=COLUMN"
        )


def select_scored(records: Sequence[Record], notes: list[str]) -> list[Record]:
    """The records whose score is a number; a note counts the others."""
    usable, first_problem = [], ""
    for record in records:
        try:
            parse_number(record, "score")
            usable.append(record)
        except InvalidRecord as error:
            first_problem = first_problem or f"{record.location}: {error.reason}"
    if not usable:
        raise UsageError(first_problem)
    if first_problem:
        notes.append(f"{count_nouns(len(records) - len(usable), 'record')} left out: {first_problem}")
    return usable


def check_second_texts(config: Config, records: Sequence[Record]) -> None:
    """Raise an error if the model was trained on pairs of texts but the records have single texts."""
    if config.reads_pairs and records and not any("second" in record.fields for record in records):
        target = "score" if config.head.is_regression else "label"
        columns = " ".join(f"--columns {name}=COLUMN" for name in ("text", "second", target))
        raise UsageError(
            f"{records[0].location}: there is one text, but this model was trained on pairs of texts; choose the "
            f"columns of both: {columns}"
        )


def record_labels(record: Record) -> list[str]:
    """All labels of a record; its label may be a list."""
    label = record.fields["label"]
    return [str(one) for one in (label if isinstance(label, list) else [label])]


def format_names(names: Sequence[str], max_names: int = 8) -> str:
    """The first `max_names` names, for a message."""
    return ", ".join(map(repr, names[:max_names])) + (", …" if len(names) > max_names else "")


class ClassifyTask(RecordTask):
    """Predict the class, the labels or the score of a text, of two texts, of an image or of a sound."""

    name = "classify"
    description = "predicts the class or the score of a text"
    question = "Classify texts, images or sounds."
    title = "Label"
    objective = "classification"
    inputs, target = ("text", "second"), "label"
    example_inputs = ("your text", "your second text")
    max_samples = 8
    Options, EvalOptions = ClassifyOptions, ClassifyEvaluation
    results = (ClassPrediction, LabelsPrediction, ScorePrediction)
    scorers = (LabelScorer, LabelSetScorer, NumberScorer)
    starter = Starter(
        "The class of a text, or of two texts.",
        "train.csv",
        256,
        pretrained=BERT_CHECKPOINT,
        exportable_preset="bert-base",
        objective_lines=(SMOOTHING,),
        is_small=True,
    )

    def check_model(self, config: Config, texts: Sequence[Any]) -> None:
        """Raise an error if a classifier that was trained on single texts reads a pair, or the other way round."""
        if config.reads_pairs is None or reads_files(config):
            return
        for number, text in enumerate(texts):
            if isinstance(text, str) == config.reads_pairs:
                given = f"text {number + 1} is {shorten(repr(text), 60)}"
                if config.reads_pairs:
                    raise UsageError(
                        f"{given}, a single text, but this model was trained on pairs of texts; give two texts: "
                        "m.classify((first, second)), or on the command line one line with a tab between them"
                    )
                raise UsageError(
                    f"{given}, a pair of texts, but this model was trained on single texts; give one string (on the "
                    "command line, a tab separates two texts: replace it by a space)"
                )

    def decode(self, model: TextModel, texts: Sequence[TextOrPair], options: ClassifyOptions) -> list[Any]:
        """The class, the labels or the score of each text; for a model of images or sounds, of each file: its path or
        content.

        If no class has a probability of at least `threshold`, the text is out of scope: its label is None, and
        `rejected_label` is the most likely class. A model with several labels per text gives all labels that reach the
        threshold (default: 0.5). An empty text, or a pair with an empty text, has no class and no labels; for a model
        that predicts a score, it is an error.
        """
        head = model.config.head
        if head.is_regression and (options.top or options.threshold is not None):
            raise UsageError(
                "this model predicts a score, not a class, so it has no top and no threshold; leave them out"
            )
        is_file = reads_files(model.config)
        if options.too_long == "split" and not is_file:
            logits = compute_mean_logits(model, texts)
        else:
            logits, lengths = compute_logits(model, texts)
            handle_long_texts(texts, lengths, model.config, options)
        predictions = []
        for number, (text, row) in enumerate(zip(texts, logits, strict=True), start=1):
            is_empty = not is_file and not all(part.strip() for part in as_tuple(text))
            if is_empty and head.is_regression:
                raise UsageError(f"text {number} is empty ({text!r}), so it has no score; leave it out")
            made = make_prediction(model.config, row, options.top, options.threshold)
            predictions.append(empty_prediction(model.config) if is_empty else made)
        return predictions

    def select(
        self, config: Config, records: Sequence[Record], options: ClassifyEvaluation, notes: list[str]
    ) -> list[Record]:
        head = config.head
        check_second_texts(config, records)
        needed: dict[str, Any] = {"second": str} if config.reads_pairs else {}
        modality = self.input_modality(config)
        needed |= {"text": str} if modality == "text" else {modality: bytes}
        needed["score" if head.is_regression else "label"] = (
            (int, float, str) if head.is_regression else (str, int, list) if head.multi_label else (str, int)
        )
        usable = select_usable(records, notes, **needed)
        if reads_files(config):
            usable = select_decodable(usable, notes)
        if config.reads_pairs is False and any(isinstance(one.fields.get("second"), str) for one in usable):
            usable = [Record({**one.fields, "second": None}, one.location) for one in usable]
            notes.append("only the first text of each pair is read, because the model was trained on single texts")
        if head.is_regression:
            return select_scored(usable, notes)
        found = {label for record in usable for label in record_labels(record)}
        if options.check_classes:
            check_classes(found, [*class_names(config), *filter(None, [head.out_of_scope])], "label")
        if not head.multi_label:
            note_unknown_labels(config, found, notes)
        return usable

    def find_scorer(self, config: Config, records: Sequence[Record]) -> TaskScorer:
        if config.head.is_regression:
            return NumberScorer()
        return LabelSetScorer() if config.head.multi_label else LabelScorer(config, records)


CLASSIFY = ClassifyTask()
