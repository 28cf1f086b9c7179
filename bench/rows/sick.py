"""How related two sentences are, and whether one follows from the other (SICK).

Data: sick/SICK_*.txt: 4,500/500/4,927 pairs with a score from 1 to 5, and entailment, contradiction or neither.
Published: none that we have checked.
Goal: better than all-MiniLM-L6-v2 as it is (Spearman 0.7715 of the cosine on test, measured on this data); the accuracy
of entailment. Relatedness is the cosine of two embeddings; for entailment, the model reads both sentences together.
"""

from pathlib import Path
from typing import Any

from rows import encoders, frame, stsb

VARIANTS = ("zero-shot", "fine-tuned", "entailment")
FILES = {"train": "SICK_train.txt", "valid": "SICK_trial.txt", "test": "SICK_test_annotated.txt"}
CHANGES = {"train.epochs": 12, "train.batch_tokens": 2048, "train.lr": 2e-4}


def read(path: Path, variant: str) -> list[dict[str, Any]]:
    """The pairs of a file with their classes, or with scores between 0 and 1."""
    rows = [line.split("\t") for line in frame.read_lines(path)[1:]]
    if variant == "entailment":
        return [{"text": row[1], "second": row[2], "label": row[4].strip()} for row in rows]
    return [{"first": row[1], "second": row[2], "score": (float(row[3]) - 1) / 4} for row in rows]


def run(data: Path, out: Path, seed: int, quick: bool, variant: str) -> dict[str, Any]:
    """Train on the pairs, unless the variant is zero-shot, and predict those of the test file."""
    parts = {part: encoders.sample(read(data / "sick" / name, variant), quick) for part, name in FILES.items()}
    test = parts.pop("test")
    if variant != "entailment":
        return stsb.fine_tune(data, out, seed, quick, variant, parts, {"test": test})
    changes = {**encoders.write_parts(out, parts, quick), **CHANGES, "model.from": encoders.find_minilm(data)}
    trained = frame.train(encoders.CLASSIFIER, out, changes, seed=seed, quick=quick)
    frame.write_jsonl(out / "predictions.jsonl", encoders.classify(trained.load(), test, "test"))
    return trained.to_dict()


def score(predictions: list[dict[str, Any]]) -> dict[str, Any]:
    """The accuracy of entailment, or the correlations of relatedness."""
    return {"accuracy": encoders.accuracy(predictions)} if "label" in predictions[0] else stsb.score(predictions)
