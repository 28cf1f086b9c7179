"""The errors to read first: the worst errors, the most confident errors, and labels that are probably wrong."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from qkv.tasks.baselines import BASELINE_NAME
from qkv.tasks.report.score import ScoredPredictions, ScoredRecord

MAX_LISTED = 8
SLACK = 0.02  # the score of a model may be this much below the baseline's
MANY_CLASSES = 10  # with at least this number, two models rarely choose the same wrong class
SURE = 0.5  # the lowest confidence of a sure prediction
VERY_SURE = 0.8  # the lowest confidence of a prediction that contradicts a label
MIN_SKILL = 1 / 3  # predicting the majority class makes errors; a model must avoid this fraction of them
WRONG = 0.5  # a record with a lower score is wrong
MIN_SUSPECTS = 5
SUSPECT_FRACTION = 0.05
"""There are too many suspects if they are at least this fraction of the more confident half of the records."""


@dataclass(frozen=True)
class ErrorReport:
    """The errors to read first."""

    num_wrong: int
    worst: tuple[ScoredRecord, ...]
    most_confident: tuple[ScoredRecord, ...]  # wrong predictions with the highest confidence
    suspects: tuple[ScoredRecord, ...]  # the model is confident, and a baseline predicts the same other label
    num_suspects: int = 0
    num_sure: int = 0  # the number of records in the more confident half
    is_reliable: bool = True  # whether model and baseline are good enough to suspect labels

    @property
    def has_suspect_labels(self) -> bool:
        """Whether there are too many suspects to be mistakes of both models."""
        is_many = self.num_suspects >= MIN_SUSPECTS and self.num_suspects >= SUSPECT_FRACTION * self.num_sure
        return is_many and self.is_reliable

    def to_dict(self) -> dict[str, Any]:
        """The errors for JSON."""
        return asdict(self) | {"has_suspect_labels": self.has_suspect_labels}


def list_errors(predictions: ScoredPredictions) -> ErrorReport:
    """List the worst errors, the most confident errors, and suspect labels."""
    wrong = [i for i, score in enumerate(predictions.scores) if score < WRONG]
    sure = [i for i in wrong if (predictions.confidences[i] or 0.0) >= SURE]
    sure.sort(key=lambda i: -(predictions.confidences[i] or 0.0))
    is_label = predictions.scorer.modality == "label"
    worst = [] if is_label else sorted(wrong, key=lambda i: predictions.scores[i])  # a wrong class is just wrong
    suspects, num_sure = find_suspects(predictions) if is_label else ([], 0)
    baseline = best_baseline_predictions(predictions)
    others = predictions.scorer.score_each(baseline, predictions.expected) if len(baseline) else []
    is_skilled = is_label and all(
        beats_majority(scores, predictions.expected) for scores in (predictions.scores, others)
    )
    is_close = sum(predictions.scores) >= sum(others) - SLACK * len(others)
    return ErrorReport(
        num_wrong=len(wrong),
        worst=list_records(predictions, [i for i in worst if i not in sure[:MAX_LISTED]]),  # no record is listed twice
        most_confident=list_records(predictions, sure),
        suspects=list_records(predictions, suspects),
        num_suspects=len(suspects),
        num_sure=num_sure,
        is_reliable=is_skilled and (is_close or len(set(predictions.expected)) >= MANY_CLASSES),
    )


def beats_majority(scores: Sequence[float], expected: Sequence[Any]) -> bool:
    """Whether predictions are clearly better than predicting the most frequent class."""
    chance = max(Counter(expected).values(), default=0)
    return sum(scores) - chance > MIN_SKILL * (len(expected) - chance)


def find_suspects(predictions: ScoredPredictions) -> tuple[list[int], int]:
    """Records whose label is probably wrong, by confidence, and the number of records that were considered.

    The model predicts a different label with a confidence of at least `VERY_SURE` and of at least the median, and a
    baseline, which uses other features, agrees with the model. Both together are rarely wrong.
    """
    baseline = best_baseline_predictions(predictions)
    confidences = [one or 0.0 for one in predictions.confidences]
    if not baseline or not confidences:
        return [], 0
    median = sorted(confidences)[len(confidences) // 2]
    sure = [i for i, confidence in enumerate(confidences) if confidence >= max(median, VERY_SURE)]
    found = [i for i in sure if predictions.predicted[i] == baseline[i] != predictions.expected[i]]
    return sorted(found, key=lambda i: -confidences[i]), len(sure)


def best_baseline_predictions(predictions: ScoredPredictions) -> Sequence[Any]:
    """The predictions of the best baseline that reads the text, or () if there is none."""
    for name in (BASELINE_NAME, "nearest text (BM25)"):
        if name in predictions.baseline_predictions:
            return predictions.baseline_predictions[name]
    return ()


def list_records(predictions: ScoredPredictions, numbers: Sequence[int]) -> tuple[ScoredRecord, ...]:
    """The first of these records."""
    baseline = best_baseline_predictions(predictions)
    return tuple(predictions.scored_record(i, baseline) for i in numbers[:MAX_LISTED])
