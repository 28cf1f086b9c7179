"""Requests to an airline: their intents, and slots such as cities and times (ATIS).

Data: atis_snips/atis.*: 4,478/500/893 requests in lower case, with an intent and BIO tags. A request with two intents
has a class of its own, as in the published scores. Two models start from MiniLM: one for intents, one for slots.
Published: BERT (base), one model for both, intents 97.9, slot F1 95.6 (README of github.com/monologg/JointBERT).
Goal: slot F1 of at least 95.
"""

from pathlib import Path
from typing import Any

from rows import encoders, frame

VARIANTS = ("intents", "slots")
DATASET = "atis"
CHANGES = {
    "intents": {"train.epochs": 20, "train.lr": 2e-4},
    "slots": {"train.epochs": 40, "train.lr": 3e-4, "train.batch_tokens": 1024},
}


def run(data: Path, out: Path, seed: int, quick: bool, variant: str, dataset: str = DATASET) -> dict[str, Any]:
    """Train a model for intents or slots, and predict those of the test requests."""
    parts = {part: read(data / "atis_snips", dataset, part, quick) for part in ("train", "valid", "test")}
    is_slots = variant == "slots"
    test = parts.pop("test")
    files = encoders.write_parts(out, parts, quick)
    changes = {**files, **CHANGES[variant], "model.from": encoders.find_minilm(data)}
    columns = {"tokens": "tokens", "tags": "tags"} if is_slots else {"text": "text", "label": "label"}
    changes["data.columns"] = columns
    trained = frame.train(encoders.TAGGER if is_slots else encoders.CLASSIFIER, out, changes, seed=seed, quick=quick)
    predict = encoders.tag if is_slots else encoders.classify
    frame.write_jsonl(out / "predictions.jsonl", predict(trained.load(), test, "test"))
    return trained.to_dict()


def read(folder: Path, dataset: str, part: str, quick: bool) -> list[dict[str, Any]]:
    """The requests of a part: text, words, tags and intent."""
    columns = [frame.read_lines(folder / f"{dataset}.{part}.{name}") for name in ("seq.in", "seq.out", "label")]
    return encoders.sample(
        [
            {"text": text.strip(), "tokens": text.split(), "tags": tags.split(), "label": label.strip()}
            for text, tags, label in zip(*columns, strict=True)
        ],
        quick,
    )


def score(predictions: list[dict[str, Any]]) -> dict[str, Any]:
    """The accuracy of intents, or the F1 of slots."""
    if isinstance(predictions[0]["prediction"], list):
        return {"slot_f1": encoders.entity_f1(predictions)}
    return {"accuracy": encoders.accuracy(predictions)}
