"""What a model says of a text, as one line or as plain values: labels, scores, tags, answers, vectors, filled gaps."""

from dataclasses import asdict, is_dataclass
from typing import Any

from qkv.tasks.run.answer import Answer
from qkv.tasks.run.classify import ClassPrediction, ScorePrediction
from qkv.tasks.run.fill import FilledText


def format_result(result: Any) -> str:
    """One line, without tabs or line ends but our own; empty where there is no result.

    >>> format_result(Label("good", 0.9312, {"good": 0.9312, "bad": 0.0688}))
    'good\\t0.9312'
    """
    match result:
        case None:
            return ""
        case ClassPrediction():
            return f"{result.label}\t{result.probability:.4f}"
        case ScorePrediction():
            return f"{result.score:.6g}"
        case Answer():
            return " ".join(result.text.split())
        case FilledText():
            return " ".join(result.text.splitlines())
        case list():  # tagged words
            return " ".join(f"{one.word}/{one.tag}" for one in result)
    return " ".join(f"{value:.6g}" for value in result.tolist())


def result_to_dict(result: Any) -> dict[str, Any]:
    """All of it, for JSON."""
    if result is None:
        return {}
    if is_dataclass(result) and not isinstance(result, type):
        return asdict(result)
    if isinstance(result, list):
        return {"words": [asdict(one) for one in result]}
    return {"vector": result.tolist()}
