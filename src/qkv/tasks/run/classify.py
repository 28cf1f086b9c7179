"""Classify: predict the class of a text or of a pair of texts, or a score if the head has a single output."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from qkv.data.modalities import parse_number
from qkv.data.objectives.table import OBJECTIVES
from qkv.data.objectives.template import SpecialTokenTemplate
from qkv.data.problems import InvalidRecord
from qkv.data.records import Record
from qkv.data.stream.random_bits import EpochRng
from qkv.errors import UsageError
from qkv.models import Config
from qkv.models.runtime.eval_mode import eval_mode
from qkv.progress import OnProgress
from qkv.tasks import metrics
from qkv.tasks.results import ClassPrediction, LabelsPrediction, ScorePrediction
from qkv.tasks.run.example_batches import (
    ExampleBatches,
    TextOrPair,
    as_tuple,
    batches,
    build_unlabelled_examples,
    max_sequence_length,
)
from qkv.tasks.run.long_texts import add_truncation_note, check_text_lengths, check_too_long, handle_long_texts
from qkv.tasks.task import Evaluation, EvaluationOptions, TextModel, check_count, select_metrics, select_usable
from qkv.text.sentences import fit_spans
from qkv.train.watch import Sample

METRICS = OBJECTIVES["classification"].metrics
TOO_LONG_CHOICES = ("error", "split", "truncate")
OUT_OF_SCOPE = "(out of scope)"


def run(
    model: TextModel,
    texts: Sequence[TextOrPair],
    *,
    top: int = 0,
    threshold: float | None = None,
    too_long: str = "error",
    batch_size: int = 32,
    progress: OnProgress | None = None,
) -> list[ClassPrediction] | list[LabelsPrediction] | list[ScorePrediction]:
    """The class, the labels or the score of each text, or of each pair of texts.

    `top` is the number of classes to list (0: all). If no class has a probability of at least `threshold`, the text is
    out of scope: its label is None, and `rejected_label` is the most likely class. The default is the threshold that
    was fitted on the validation data, or 0. A model with several labels per text gives all labels that reach the
    threshold (default: 0.5). `too_long` is what happens to a text with too many tokens: "error"; "truncate", as in
    training; or "split", which takes the mean of the logits of its parts. An empty text, or a pair with an empty text,
    has no class and no labels; for a model that predicts a score, it is an error.
    """
    check_too_long(too_long, TOO_LONG_CHOICES)
    if model.config.head.is_regression and (top or threshold is not None):
        raise UsageError("this model predicts a score, not a class, so it has no top and no threshold; leave them out")
    check_count("top", top, minimum=0)
    is_number = isinstance(threshold, int | float) and not isinstance(threshold, bool)
    if threshold is not None and not (is_number and 0 <= threshold <= 1):
        raise UsageError(f"threshold = {threshold!r}: must be a number between 0 and 1, because it is a probability")
    if too_long == "split":
        logits = compute_mean_logits(model, texts, batch_size, progress)
    else:
        logits, lengths = compute_logits(model, texts, batch_size, progress)
        handle_long_texts(texts, lengths, model.config, too_long, TOO_LONG_CHOICES)
    predictions = []
    for number, (text, row) in enumerate(zip(texts, logits, strict=True), start=1):
        is_empty = not all(part.strip() for part in as_tuple(text))
        if is_empty and model.config.head.is_regression:
            raise UsageError(f"text {number} is empty ({text!r}), so it has no score; leave it out")
        predictions.append(
            empty_prediction(model.config) if is_empty else make_prediction(model.config, row, top, threshold)
        )
    return predictions  # type: ignore[return-value]


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


def class_probabilities(config: Config, logits: np.ndarray) -> np.ndarray:
    """Logits (N, V) → probabilities (N, V): softmax, or sigmoid if a text may have several labels.

    The logits are divided by the temperature that was fitted on the validation data.
    """
    scaled = logits.astype(np.float64) / config.head.temperature
    if config.head.multi_label:
        return np.exp(-np.logaddexp(0, -scaled))
    probabilities = np.exp(scaled - scaled.max(-1, keepdims=True))
    return probabilities / probabilities.sum(-1, keepdims=True)  # type: ignore[no-any-return]


def class_names(config: Config) -> tuple[str, ...]:
    """The names of the classes, or their numbers if the model has no names."""
    return config.head.labels or tuple(str(number) for number in range(config.head.outputs))


def is_out_of_scope(config: Config, label: str) -> bool:
    """Whether a label says that a text belongs to no class of a model with a threshold.

    Older models do not know the label of such texts: for these, every label that is not a class says so.
    """
    head = config.head
    return head.threshold > 0 and (
        label == head.out_of_scope if head.out_of_scope else label not in class_names(config)
    )


def available_metrics(config: Config, records: Sequence[Record]) -> tuple[str, ...]:
    """The metrics, the main one first; some only if the model has a threshold and some texts are out of scope."""
    if config.head.multi_label:
        return METRICS["labels"]
    if config.head.is_regression:
        return METRICS["score"]
    has_outside = any(is_out_of_scope(config, str(record.fields.get("label"))) for record in records)
    return METRICS["label"] + (METRICS["scope"] if has_outside else ())


def evaluate(model: TextModel, records: Sequence[Record], options: EvaluationOptions) -> Evaluation:
    """Compare predicted labels with expected labels or, if the head has a single output, scores with scores.

    Texts that are too long are truncated as in training, and counted in the notes. A label that the model does not have
    counts as wrong. If the model has a threshold, it is right to reject a text whose label is `head.out_of_scope`.
    """
    config = model.config
    check_second_texts(config, records)
    needed: dict[str, Any] = {"second": str} if config.reads_pairs else {}
    if config.head.is_regression:
        needed["score"] = (int, float, str)
    else:
        needed["label"] = (str, int, list) if config.head.multi_label else (str, int)
    records, notes = select_usable(records, text=str, **needed)
    if options.check_classes and not config.head.is_regression:
        known = [*class_names(config), *filter(None, [config.head.out_of_scope])]
        check_classes({label for record in records for label in record_labels(record)}, known, "label")
    usual = available_metrics(config, records)
    names = select_metrics(options.metrics, usual, usual)
    target_scores: list[float] = []
    if config.head.is_regression:
        records, target_scores = select_scored(records, notes)
    texts = [record_text(record) for record in records]
    if config.reads_pairs is False and not all(isinstance(text, str) for text in texts):
        texts = [record.fields["text"] for record in records]
        notes.append("only the first text of each pair is read, because the model was trained on single texts")
    logits, lengths = compute_logits(model, texts, options.batch_size, options.progress)
    add_truncation_note(notes, lengths, config)
    if config.head.is_regression:
        compared = compare_numbers(logits, target_scores, names)
    elif config.head.multi_label:
        compared = compare_label_sets(config, logits, records)
    else:
        compared = compare_labels(config, logits, records, names, notes)
    shown = list(zip(texts, compared.predictions, compared.targets, strict=True))[: options.max_samples]
    samples = [
        Sample(" ‖ ".join(as_tuple(text)), prediction, target, model_input="\t".join(as_tuple(text)))
        for text, prediction, target in shown
    ]
    scores = {name: compared.scores[name] for name in names}
    return Evaluation(scores, samples, names[0], len(records), tuple(notes), report=compared.report)


@dataclass(frozen=True)
class Comparison:
    """Predictions and targets as a reader sees them, and the scores of the predictions."""

    predictions: list[str]
    targets: list[str]
    scores: dict[str, float]
    report: metrics.ClassReport | None = None


def compare_numbers(logits: np.ndarray, targets: Sequence[float], names: Sequence[str]) -> Comparison:
    """Compare the only output of each text with its score."""
    predictions = logits[:, 0].tolist()
    scores = {name: getattr(metrics, name)(predictions, targets) for name in names}
    return Comparison([f"{one:.3g}" for one in predictions], [f"{one:.3g}" for one in targets], scores)


def compare_label_sets(config: Config, logits: np.ndarray, records: Sequence[Record]) -> Comparison:
    """Compare all labels of each text."""
    predictions = [make_prediction(config, row).labels for row in logits]  # type: ignore[union-attr]
    targets = [record_labels(record) for record in records]
    shown = [[", ".join(sorted(labels)) or "(none)" for labels in side] for side in (predictions, targets)]
    report = metrics.make_class_report(metrics.ClassCounts(predictions, targets))
    return Comparison(shown[0], shown[1], dict(metrics.label_set_scores(predictions, targets)), report)


def compare_labels(
    config: Config, logits: np.ndarray, records: Sequence[Record], names: Sequence[str], notes: list[str]
) -> Comparison:
    """Compare the class of each text. Notes list the labels that the model does not have."""
    classes = class_names(config)
    found = [make_prediction(config, row, top=1).label for row in logits]  # type: ignore[union-attr]
    predictions = [OUT_OF_SCOPE if label is None else label for label in found]
    targets = [str(record.fields["label"]) for record in records]
    unknown = sorted(set(targets) - set(classes))
    outside = [label for label in unknown if is_out_of_scope(config, label)]
    if outside:
        notes.append(f"out of scope, because the model does not have these labels: {format_names(outside)}")
        targets = [OUT_OF_SCOPE if label in outside else label for label in targets]
    if wrong := [label for label in unknown if label not in outside]:
        may_be_outside = len(wrong) == 1 and not config.head.out_of_scope
        advice = f'; if its texts belong to no class, train with objective.out_of_scope="{wrong[0]}"'
        note = f"labels that the model does not have, counted as wrong: {format_names(wrong)}"
        notes.append(note + (advice if may_be_outside else ""))
    scores = scope_scores(predictions, targets)
    scores |= {name: getattr(metrics, name)(predictions, targets) for name in names if name not in scores}
    counts = metrics.label_counts(predictions, targets)
    return Comparison(
        predictions, targets, scores, metrics.make_class_report(counts, zip(predictions, targets, strict=True))
    )


def check_classes(found: Collection[str], classes: Sequence[str], field: str) -> None:
    """Raise an error if none of the labels or tags of the data, which are in `field`, is a class of the model."""
    if found and not set(found) & set(classes):
        name = field.removesuffix("s")
        raise UsageError(
            f"none of the {name}s is a class of this model: the {name}s are {format_names(sorted(found))}, but the "
            f"classes are {format_names(classes)}; is this the right column? Choose another with --columns "
            f"{field}=COLUMN"
        )


def scope_scores(predictions: Sequence[str], targets: Sequence[str]) -> dict[str, float]:
    """The accuracy of the texts in scope, and the fraction of the other texts that is rejected."""
    is_right, is_outside = np.array(predictions) == np.array(targets), np.array(targets) == OUT_OF_SCOPE
    return {
        "in_scope_accuracy": metrics.ratio_score(is_right & ~is_outside, ~is_outside),
        "out_of_scope_recall": metrics.ratio_score(is_right & is_outside, is_outside),
    }


def select_scored(records: Sequence[Record], notes: list[str]) -> tuple[list[Record], list[float]]:
    """The records whose score is a number, and these numbers; a note counts the others."""
    usable, scores, first_problem = [], [], ""
    for record in records:
        try:
            scores.append(parse_number(record, "score"))
            usable.append(record)
        except InvalidRecord as error:
            first_problem = first_problem or f"{record.location}: {error.reason}"
    if not usable:
        raise UsageError(first_problem)
    if first_problem:
        notes.append(f"{len(records) - len(usable):,} records left out: {first_problem}")
    return usable, scores


def compute_logits(
    model: TextModel, texts: Sequence[TextOrPair], batch_size: int, progress: OnProgress | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """The logits of each text (N, V), and the texts' lengths in tokens before truncation (N,).

    Texts are laid out and truncated as in training.
    """
    num_outputs = model.config.head.outputs
    if not texts:
        return np.zeros((0, num_outputs), np.float32), np.zeros(0, np.int64)
    objective = build_unlabelled_examples(model, [as_tuple(text) for text in texts])
    examples = objective.build(np.arange(len(texts)), EpochRng(0))
    batched = ExampleBatches(model.network, examples, objective.pad_token_id)
    logits = np.zeros((len(texts), num_outputs), np.float32)
    with eval_mode(model.network):
        for chosen in batches(examples.lengths, batch_size, progress):
            logits[chosen] = batched.outputs(chosen).cpu().numpy()
    return logits, objective.required_lengths(slice(None))[:, 0]


def compute_mean_logits(
    model: TextModel, texts: Sequence[TextOrPair], batch_size: int, progress: OnProgress | None = None
) -> np.ndarray:
    """The logits of each text (N, V). A text that is too long is split at sentences, and its logits are the mean."""
    max_length = max_sequence_length(model.config)
    room = max_length - SpecialTokenTemplate.from_tokenizer(model.tokenizer).num_special_tokens()

    def fits(part: str) -> bool:
        return len(model.tokenizer.encode(part, add_special_tokens=False)) <= room

    parts: list[TextOrPair] = []
    owner: list[int] = []
    for number, text in enumerate(texts):
        spans = [] if not isinstance(text, str) or fits(text) else fit_spans(str(text), fits)
        parts += [str(text)[start:end] for start, end in spans] or [text]
        owner += [number] * max(1, len(spans))
    logits, lengths = compute_logits(model, parts, batch_size, progress)
    check_text_lengths(parts, lengths, max_length)  # a pair of texts cannot be split
    sums = np.zeros((len(texts), logits.shape[1]))
    np.add.at(sums, owner, logits)
    mean: np.ndarray = sums / np.bincount(owner, minlength=len(texts))[:, None]
    return mean


def check_second_texts(config: Config, records: Sequence[Record]) -> None:
    """Raise an error if a model that was trained on pairs of texts would be evaluated on single texts."""
    if config.reads_pairs and records and not any("second" in record.fields for record in records):
        target = "score" if config.head.is_regression else "label"
        columns = " ".join(f"--columns {name}=COLUMN" for name in ("text", "second", target))
        raise UsageError(
            f"{records[0].location}: there is one text, but this model was trained on pairs of texts; choose the "
            f"columns of both: {columns}"
        )


def record_labels(record: Record) -> list[str]:
    """All labels of a record, whose label may be a list."""
    label = record.fields["label"]
    return [str(one) for one in (label if isinstance(label, list) else [label])]


def record_text(record: Record) -> TextOrPair:
    """A record's text, or its two texts."""
    second = record.fields.get("second")
    return (record.fields["text"], second) if isinstance(second, str) else record.fields["text"]


def format_names(names: Sequence[str], max_names: int = 8) -> str:
    """The first `max_names` names, for a message."""
    return ", ".join(map(repr, names[:max_names])) + (", …" if len(names) > max_names else "")
