"""Intents of requests to an assistant, some of which are out of scope (CLINC150).

Data: clinc150/data_full.json: 150 intents with 15,000/3,000/4,500 requests, and requests that belong to none of them
(100/100/1,000). The model is trained on the intents only. A request is out of scope if no intent reaches a probability,
which is fitted on the validation requests: it gives the best accuracy over all of them, out of scope included.
Published: none that was read in its source.
Goal: at least 95 % in scope, and the recall of requests out of scope.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np

from qkv.tasks import metrics
from rows import encoders, frame

OUT_OF_SCOPE = "oos"
QUICK_LABELS = ("translate", "weather", "transfer", OUT_OF_SCOPE)
CHANGES = {"train.epochs": 10, "train.lr": 2e-4, "train.batch_tokens": 2048}


def run(data: Path, out: Path, seed: int, quick: bool) -> dict[str, Any]:
    """Train on the intents, and predict all validation and test requests."""
    whole = json.loads(frame.read_text(data / "clinc150/data_full.json"))
    if quick:
        whole = {part: [pair for pair in pairs if pair[1] in QUICK_LABELS] for part, pairs in whole.items()}
    parts = {
        part: [{"text": text, "label": label} for text, label in encoders.sample(pairs, quick)]
        for part, pairs in whole.items()
    }
    files = encoders.write_parts(out, {"train": parts["train"], "valid": parts["val"]}, quick)
    changes = {**files, **CHANGES, "model.from": encoders.find_minilm(data)}
    trained = frame.train(encoders.CLASSIFIER, out, changes, seed=seed, quick=quick)
    model = trained.load()
    lines = []
    for part, own in {"valid": ("val", "oos_val"), "test": ("test", "oos_test")}.items():
        lines += encoders.classify(model, [record for name in own for record in parts[name]], part)
    frame.write_jsonl(out / "predictions.jsonl", lines)
    return trained.to_dict()


def score(predictions: list[dict[str, Any]]) -> dict[str, Any]:
    """Accuracy in scope without a threshold; then, with it, accuracy in scope and recall out of scope."""
    parts = encoders.split_parts(predictions)
    threshold = fit_threshold(parts["valid"])
    in_scope = [line for line in parts["test"] if line["label"] != OUT_OF_SCOPE]
    rest = [line for line in parts["test"] if line["label"] == OUT_OF_SCOPE]
    right = [line["prediction"] == line["label"] and line["probability"] >= threshold for line in in_scope]
    return {
        "in_scope": encoders.accuracy(in_scope),
        "threshold": threshold,
        "in_scope_with_threshold": encoders.with_interval(metrics.mean_score(right)),
        "out_of_scope_recall": encoders.with_interval(
            metrics.mean_score([line["probability"] < threshold for line in rest])
        ),
        "out_of_scope_auroc": auroc([line["probability"] for line in in_scope], [line["probability"] for line in rest]),
    }


def fit_threshold(lines: encoders.Lines) -> float:
    """The probability with the highest accuracy if every request below it is predicted to be out of scope."""
    probability = np.array([line["probability"] for line in lines])
    is_right = np.array([line["prediction"] == line["label"] for line in lines])
    is_outside = np.array([line["label"] == OUT_OF_SCOPE for line in lines])
    choices = np.unique(np.concatenate([[0.0], probability]))
    scores = [np.where(probability >= one, is_right, is_outside).mean() for one in choices]
    return float(choices[int(np.argmax(scores))])


def auroc(inside: list[float], outside: list[float]) -> float:
    """The probability that a random request in scope has a higher probability than a random one out of scope."""
    below = np.searchsorted(np.sort(outside), inside, side="left") + np.searchsorted(
        np.sort(outside), inside, side="right"
    )
    return float(below.sum() / 2 / max(1, len(inside) * len(outside)))
