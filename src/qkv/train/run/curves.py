"""The learning curves of a run, read from its metrics.jsonl."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from qkv.errors import QkvError, shorten
from qkv.files import parse_json, read_text

NOT_METRICS = ("kind", "step", "loss", "seconds", "tokens", "best")
"""Entries in the log line of an evaluation that are not metrics of the task."""

Points = list[tuple[float, float]]
"""A curve: (step, value) of each of its points."""


@dataclass
class RunCurves:
    """The curves of one run, each a list of (step, value)."""

    name: str
    training: Points = field(default_factory=list)
    lr: Points = field(default_factory=list)  # the learning rate
    validation: dict[str, Points] = field(default_factory=dict)  # "loss" and the metrics of the task
    kept: dict[str, Points] = field(default_factory=dict)  # metrics of the kept weights, if not from the last step
    full_epochs: int | None = None  # how often the run has read all of its training data


def read_curves(name: str, path: Path) -> RunCurves:
    """Read the curves of one run.

    If the last step was evaluated twice, the second evaluation is of the weights that the run kept at its end: the best
    checkpoint, or an average.
    """
    path = path / "metrics.jsonl" if path.is_dir() else path
    lines = read_text(path, may_be_empty=True).splitlines()
    training: dict[float, float] = {}
    lr: dict[float, float] = {}
    evaluated: dict[float, dict[str, float]] = {}
    evaluated_again: dict[float, dict[str, float]] = {}
    weights_step: int | None = None
    full_epochs: int | None = None
    for number, line in enumerate(lines, start=1):
        try:
            row = parse_json(line)
            kind, step = row.get("kind"), float(row["step"])
            if kind == "step" and row["loss"] is not None:  # skipped steps have no loss
                training[step] = float(row["loss"])
                lr[step] = float(row.get("lr") or 0.0)
                full_epochs = row.get("epoch")
            elif kind == "eval":
                metrics = {key: float(value) for key, value in row.items() if _is_metric(key, value)}
                (evaluated_again if step in evaluated else evaluated)[step] = metrics
                weights_step = (row.get("final") or {}).get("weights_step")
            elif kind == "end" and row.get("reason") == "epochs" and full_epochs is not None:
                full_epochs += 1
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            if number == 1 and len(lines) > 1:
                raise QkvError(
                    f"{path}, line {number}: not a line of a metrics.jsonl ({shorten(str(error))}); give a run folder"
                ) from error
            continue  # an incomplete line of a run that is still writing or was killed
    validation: dict[str, Points] = {}
    for step, metrics in sorted(evaluated.items()):
        for key, value in metrics.items():
            validation.setdefault(key, []).append((step, value))
    kept = _metrics_of_kept_weights(evaluated, evaluated_again, weights_step)
    return RunCurves(name, sorted(training.items()), sorted(lr.items()), validation, kept, full_epochs)


def _is_metric(key: str, value: object) -> bool:
    """Whether an entry in the line of an evaluation is a metric."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return is_number and (key == "loss" or key not in NOT_METRICS)


def _metrics_of_kept_weights(
    evaluated: Mapping[float, dict[str, float]],
    evaluated_again: Mapping[float, dict[str, float]],
    weights_step: int | None,
) -> dict[str, Points]:
    """The metrics of the weights that the run kept, or {} if it kept the weights of its last step.

    The log has these metrics at the last step, with the step of the weights, where the point is drawn.
    """
    last = max(evaluated, default=0.0)
    metrics = evaluated_again.get(last, {})
    if not metrics or weights_step == last or _same_metrics(evaluated[last], metrics):
        return {}
    step = last if weights_step is None else float(weights_step)
    return {key: [(step, value)] for key, value in metrics.items()}


def _same_metrics(one: Mapping[str, float], other: Mapping[str, float]) -> bool:
    """Whether the metrics that two evaluations have in common are equal."""
    shared = [(one[key], other[key]) for key in one if key in other]
    return bool(shared) and all(math.isclose(a, b, rel_tol=1e-6) or (a != a and b != b) for a, b in shared)
