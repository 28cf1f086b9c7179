"""The errors to read first: the worst, those with the highest confidence, and labels that are probably wrong."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from qkv.tasks.baseline import BASELINE_NAME
from qkv.tasks.judges import LabelJudge, LabelSetJudge
from qkv.tasks.report.score import JudgedRecord, Judgement

MAX_LISTED = 8
SLACK = 0.02  # a model at most this much worse than the baseline can still judge labels
MANY_CLASSES = 10  # with this many, two models rarely choose the same wrong class, even if one of them is weak
SURE = 0.5  # the lowest confidence of a sure prediction
VERY_SURE = 0.8  # the lowest confidence of a prediction that contradicts a label
MIN_SKILL = 1 / 3  # of the errors of the majority-class baseline: the fraction that a model must avoid to judge labels
WRONG = 0.5  # a record with a lower score is wrong
MIN_SUSPECTS = 5
SUSPECT_FRACTION = 0.05
"""There are too many suspects if they are at least this fraction of the more confident half of the records."""


@dataclass(frozen=True)
class ErrorReport:
    """The errors to read first."""

    num_wrong: int
    worst: tuple[JudgedRecord, ...]
    surest: tuple[JudgedRecord, ...]  # wrong predictions with the highest confidence
    suspects: tuple[JudgedRecord, ...]  # the model is confident, and a baseline predicts the same other label
    num_suspects: int = 0
    num_sure: int = 0  # the number of records in the more confident half
    is_reliable: bool = True  # whether both models together can judge a label

    @property
    def has_suspect_labels(self) -> bool:
        """Whether there are too many suspects to be mistakes of both models."""
        is_many = self.num_suspects >= MIN_SUSPECTS and self.num_suspects >= SUSPECT_FRACTION * self.num_sure
        return is_many and self.is_reliable

    def to_dict(self) -> dict[str, Any]:
        """The errors for JSON."""
        return asdict(self) | {"has_suspect_labels": self.has_suspect_labels}


def report_errors(judgement: Judgement) -> ErrorReport:
    """List the worst errors, those with the highest confidence, and suspect labels."""
    wrong = [i for i, score in enumerate(judgement.scores) if score < WRONG]
    sure = [i for i in wrong if (judgement.confidences[i] or 0.0) >= SURE]
    sure.sort(key=lambda i: -(judgement.confidences[i] or 0.0))
    is_label = isinstance(judgement.judge, LabelJudge) and not isinstance(judgement.judge, LabelSetJudge)
    worst = [] if is_label else sorted(wrong, key=lambda i: judgement.scores[i])  # a wrong class is just wrong
    suspects, num_sure = find_suspects(judgement) if is_label else ([], 0)
    opinion = second_opinion(judgement)
    others = judgement.judge.score_each(opinion, judgement.expected) if len(opinion) else []
    is_skilled = is_label and all(beats_majority(scores, judgement.expected) for scores in (judgement.scores, others))
    is_close = sum(judgement.scores) >= sum(others) - SLACK * len(others)
    return ErrorReport(
        num_wrong=len(wrong),
        worst=list_records(judgement, worst),
        surest=list_records(judgement, sure),
        suspects=list_records(judgement, suspects),
        num_suspects=len(suspects),
        num_sure=num_sure,
        is_reliable=is_skilled and (is_close or len(set(judgement.expected)) >= MANY_CLASSES),
    )


def beats_majority(scores: Sequence[float], expected: Sequence[Any]) -> bool:
    """Whether predictions are clearly better than predicting the most frequent class."""
    chance = max(Counter(expected).values(), default=0)
    return sum(scores) - chance > MIN_SKILL * (len(expected) - chance)


def find_suspects(judgement: Judgement) -> tuple[list[int], int]:
    """Records whose label is probably wrong, by confidence, and the number of records that were considered.

    They are in the half of the records with the highest confidence, which must be at least `VERY_SURE`, and a baseline,
    which uses other features, predicts the same class. Both together are rarely wrong.
    """
    opinion = second_opinion(judgement)
    confidences = [one or 0.0 for one in judgement.confidences]
    if not opinion or not confidences:
        return [], 0
    median = sorted(confidences)[len(confidences) // 2]
    sure = [i for i, confidence in enumerate(confidences) if confidence >= max(median, VERY_SURE)]
    found = [i for i in sure if judgement.predicted[i] == opinion[i] != judgement.expected[i]]
    return sorted(found, key=lambda i: -confidences[i]), len(sure)


def second_opinion(judgement: Judgement) -> Sequence[Any]:
    """The predictions of the best baseline that reads the text, or () if there is none."""
    for name in (BASELINE_NAME, "nearest text (BM25)"):
        if name in judgement.opinions:
            return judgement.opinions[name]
    return ()


def list_records(judgement: Judgement, numbers: Sequence[int]) -> tuple[JudgedRecord, ...]:
    """The first of these records."""
    opinion = second_opinion(judgement)
    return tuple(judgement.judged(i, opinion) for i in numbers[:MAX_LISTED])
