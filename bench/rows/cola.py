"""Whether a sentence is grammatical (CoLA).

Data: cola/in_domain_train.tsv (8,551 sentences), of which a tenth is for validation. The two dev files (527 sentences
from the same books, 516 from other ones) are only scored; together they are the dev set of GLUE. in_domain_test.tsv and
out_of_domain_test.tsv are scored, too, if they are there.
Published: Matthews' correlation on GLUE's test set: BERT-Tiny 0.0, BERT-Small 27.8, BERT-Medium 38.0 (README of
github.com/google-research/bert).
Goal: a correlation between those of BERT-Small and BERT-Medium.
"""

from pathlib import Path
from typing import Any

from qkv.tasks import metrics
from rows import encoders, frame

PARTS = ("in_domain_dev", "out_of_domain_dev")
TEST_PARTS = ("in_domain_test", "out_of_domain_test")


def read(path: Path) -> list[dict[str, str]]:
    """The sentences of a file and their labels, 0 or 1."""
    rows = [line.split("\t") for line in frame.read_lines(path)]
    return [{"text": row[3], "label": row[1]} for row in rows]


def run(data: Path, out: Path, seed: int, quick: bool) -> dict[str, Any]:
    """Train on the sentences, and predict those of the dev and test files."""
    train = encoders.sample(read(data / "cola/in_domain_train.tsv"), quick)
    changes = {**encoders.write_parts(out, {"train": train}, quick), "model.from": encoders.find_minilm(data)}
    trained = frame.train(encoders.CLASSIFIER, out, changes, seed=seed, quick=quick)
    frame.write_jsonl(out / "predictions.jsonl", predict(trained, data, quick))
    return trained.to_dict()


def predict(trained: frame.Trained, data: Path, quick: bool) -> list[dict[str, Any]]:
    """The predictions for both dev files, and for the test files that are there."""
    model, lines = trained.load(), []
    for part in find_parts(data):
        lines += encoders.classify(model, encoders.sample(read(data / f"cola/{part}.tsv"), quick), part)
    return lines


def find_parts(data: Path) -> list[str]:
    """The names of the files that are scored."""
    return [*PARTS, *(part for part in TEST_PARTS if encoders.has_file(data / f"cola/{part}.tsv"))]


def score(predictions: list[dict[str, Any]]) -> dict[str, Any]:
    """Matthews' correlation × 100 on the files of both domains together and on each, and the accuracy on both."""
    parts = encoders.split_parts(predictions)
    both = {
        name: lines
        for name in ("dev", "test")
        if (lines := [line for line in predictions if line["part"].endswith(name)])
    }
    scores = {f"{part}_matthews": encoders.compute(metrics.matthews, lines) for part, lines in (both | parts).items()}
    return {**scores, **{f"{part}_accuracy": encoders.accuracy(lines) for part, lines in both.items()}}
