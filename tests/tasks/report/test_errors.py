"""Suspect labels: planted wrong labels are found, and shared mistakes of weak models are not taken for them."""

from random import Random

import pytest

import qkv
from qkv.data import FileLocation, Record
from qkv.tasks.baselines import BASELINE_NAME
from qkv.tasks.report.errors import ErrorReport, list_errors
from qkv.tasks.report.score import ScoredPredictions
from qkv.tasks.verbs.classify import LabelScorer

NUM_RECORDS = 400


def score_planted(num_classes: int, noise: float, weak: float = 0.0) -> tuple[ErrorReport, set[int]]:
    """The errors of a model on records with wrong labels, whose numbers are returned, too.

    The model and the SVM are right, except that the model is wrong on a fraction `weak` of the records, and unsure.
    """
    rng = Random(0)
    classes = [f"class {i}" for i in range(num_classes)]

    def another(label: str) -> str:
        return rng.choice([one for one in classes if one != label])

    truth = [rng.choice(classes) for _ in range(NUM_RECORDS)]
    wrong = set(rng.sample(range(NUM_RECORDS), int(noise * NUM_RECORDS)))
    labels = [another(label) if i in wrong else label for i, label in enumerate(truth)]
    hard = set(rng.sample(range(NUM_RECORDS), int(weak * NUM_RECORDS)))
    predicted = [another(label) if i in hard else label for i, label in enumerate(truth)]
    confidences: list[float | None] = [
        rng.uniform(0.5, 0.7) if i in hard else rng.uniform(0.6, 1) for i in range(NUM_RECORDS)
    ]
    records = [Record({"text": str(i), "label": labels[i]}, FileLocation("valid", i)) for i in range(NUM_RECORDS)]
    scorer = LabelScorer(qkv.new("bert-tiny").config, [])
    scores = scorer.score_each(predicted, labels)
    predictions = ScoredPredictions(scorer, records, predicted, labels, scores, confidences, {BASELINE_NAME: truth})
    return list_errors(predictions), wrong


@pytest.mark.parametrize(("num_classes", "weak"), [(2, 0.0), (2, 0.01), (20, 0.0), (20, 0.2)])
def test_planted_labels_are_suspect(num_classes: int, weak: float) -> None:
    report, wrong = score_planted(num_classes, noise=0.1, weak=weak)
    assert report.has_suspect_labels
    assert {int(one.text) for one in report.suspects} <= wrong
    assert report.num_suspects >= len(wrong) / 3  # half of the records are considered


@pytest.mark.parametrize(
    ("num_classes", "noise", "weak"), [(2, 0.0, 0.0), (2, 0.0, 0.2), (20, 0.0, 0.2), (20, 0.01, 0.0), (2, 0.1, 0.2)]
)
def test_right_labels_and_weak_models_raise_no_suspicion(num_classes: int, noise: float, weak: float) -> None:
    report, _ = score_planted(num_classes, noise, weak)
    assert not report.has_suspect_labels


@pytest.mark.parametrize(
    ("accuracy", "confidence", "is_suspect"), [(0.9, 0.9, True), (0.52, 0.9, False), (0.9, 0.55, False)]
)
def test_only_a_confident_model_that_beats_chance_contradicts_labels(
    accuracy: float, confidence: float, is_suspect: bool
) -> None:
    """The model and the SVM agree everywhere, and are wrong on the same records."""
    labels = ["ab"[i % 2] for i in range(NUM_RECORDS)]
    other = {"a": "b", "b": "a"}
    wrong = set(Random(0).sample(range(NUM_RECORDS), round((1 - accuracy) * NUM_RECORDS)))
    predicted = [other[label] if i in wrong else label for i, label in enumerate(labels)]
    records = [Record({"text": str(i), "label": label}, FileLocation("valid", i)) for i, label in enumerate(labels)]
    scorer = LabelScorer(qkv.new("bert-tiny").config, [])
    scores, baseline_predictions = scorer.score_each(predicted, labels), {BASELINE_NAME: predicted}
    sure: list[float | None] = [confidence] * NUM_RECORDS
    report = list_errors(ScoredPredictions(scorer, records, predicted, labels, scores, sure, baseline_predictions))
    assert report.has_suspect_labels == is_suspect
