"""Intents of requests to an assistant, some of which are out of scope (CLINC150).

Data: clinc150/data_full.json: 150 intents with 15,000/3,000/4,500 requests, and requests that belong to none of them
(100/100/1,000). The model is trained on the intents only. A request is out of scope if the probability of every
intent is below a threshold. Training chooses the threshold with the best accuracy over all validation requests.
Published: none that we have checked.
Goal: at least 95 % in scope, and the recall of requests out of scope.
"""

import json
from pathlib import Path
from typing import Any

from qkv.tasks import metrics
from rows import encoders, frame

OUT_OF_SCOPE = "oos"
QUICK_LABELS = ("translate", "weather", "transfer", OUT_OF_SCOPE)
CHANGES = {"train.epochs": 10, "train.lr": 2e-4, "train.batch_tokens": 2048}


def run(data: Path, out: Path, seed: int, quick: bool) -> dict[str, Any]:
    """Train on the intents, and predict all test requests."""
    whole = json.loads(frame.read_text(data / "clinc150/data_full.json"))
    if quick:
        whole = {part: [pair for pair in pairs if pair[1] in QUICK_LABELS] for part, pairs in whole.items()}
    parts = {
        part: [{"text": text, "label": label} for text, label in encoders.sample(pairs, quick)]
        for part, pairs in whole.items()
    }
    files = encoders.write_parts(out, {"train": parts["train"], "valid": parts["val"] + parts["oos_val"]}, quick)
    changes = {**files, **CHANGES, "objective.out_of_scope": OUT_OF_SCOPE, "model.from": encoders.find_minilm(data)}
    trained = frame.train(encoders.CLASSIFIER, out, changes, seed=seed, quick=quick)
    model = trained.load()
    lines = encoders.classify(model, parts["test"] + parts["oos_test"], "test", threshold=0.0)
    fitted = model.config.head.threshold
    frame.write_jsonl(out / "predictions.jsonl", ({**line, "threshold": fitted} for line in lines))
    return {**trained.to_dict(), "threshold": fitted}


def score(predictions: list[dict[str, Any]]) -> dict[str, Any]:
    """Accuracy in scope without a threshold; then, with it, accuracy in scope and recall out of scope."""
    in_scope = [line for line in predictions if line["label"] != OUT_OF_SCOPE]
    right = [line["prediction"] == line["label"] and is_accepted(line) for line in in_scope]
    rejected = [not is_accepted(line) for line in predictions if line["label"] == OUT_OF_SCOPE]
    return {
        "in_scope": encoders.accuracy(in_scope),
        "in_scope_with_threshold": encoders.with_interval(metrics.mean_score(right)),
        "out_of_scope_recall": encoders.with_interval(metrics.mean_score(rejected)),
    }


def is_accepted(line: dict[str, Any]) -> bool:
    """Whether the probability of the intent reaches the threshold."""
    return bool(line["probability"] >= line["threshold"])
