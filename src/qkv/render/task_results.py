"""Format the result of a task (a label, score, answer, vector, tags or filled masks) as one line or for JSON."""

from dataclasses import asdict, is_dataclass
from typing import Any

from qkv.tasks.run.answer import Answer
from qkv.tasks.run.classify import ClassPrediction, ScorePrediction
from qkv.tasks.run.fill import FilledText


def format_result(result: Any) -> str:
    """Format a result as one line, which is empty for None.

    >>> format_result(ClassPrediction("good", 0.9312, {"good": 0.9312, "bad": 0.0688}))
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
            return " ".join(f"{tagged.word}/{tagged.tag}" for tagged in result)
    return " ".join(f"{value:.6g}" for value in result.tolist())


def result_to_dict(result: Any) -> dict[str, Any]:
    """Convert a result to a dictionary for JSON."""
    if result is None:
        return {}
    if is_dataclass(result) and not isinstance(result, type):
        return asdict(result)
    if isinstance(result, list):
        return {"words": [asdict(tagged) for tagged in result]}
    return {"vector": result.tolist()}
