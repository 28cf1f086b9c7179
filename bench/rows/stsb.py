"""How similar two sentences are (STS benchmark, English).

Data: stsb/stsb-en-*.csv: 5,749 pairs for training, a tenth of them for validation. Dev (1,500) is only scored, and so
is test (1,379) if its file is there. The prediction is the cosine of the embeddings of the two sentences.
Published: none for MiniLM that we have checked; fine-tuned, GLUE test (Pearson/Spearman): BERT-Tiny 74.3/73.6,
BERT-Small 78.8/77.0 (README of github.com/google-research/bert).
Goal: Spearman 0.867 on dev with all-MiniLM-L6-v2 as it is, and more after fine-tuning.
"""

import csv
from pathlib import Path
from typing import Any

import qkv
from qkv.tasks import metrics
from rows import encoders, frame

VARIANTS = ("zero-shot", "fine-tuned")

RECIPE = """
[data]
max_length = 128
valid_fraction = 0.1

[objective]
kind = "contrastive"

[train]
epochs = 6
batch_tokens = 2048
lr = 5e-5
schedule = "linear"
warmup = 0.1
eval_examples = 1000
keep_checkpoints = 1
"""
MAX_SCORE = 5


def read(path: Path) -> list[dict[str, Any]]:
    """The pairs of a file with their scores, divided by the largest score."""
    rows = csv.reader(frame.read_text(path).splitlines())
    return [{"first": first, "second": second, "score": float(score) / MAX_SCORE} for first, second, score in rows]


def run(data: Path, out: Path, seed: int, quick: bool, variant: str) -> dict[str, Any]:
    """Compare the sentences of dev and test, before or after training."""
    folder = data / "stsb"
    parts = {part: folder / f"stsb-en-{part}.csv" for part in ("dev", "test")}
    tests = {
        part: encoders.sample(read(path), quick)
        for part, path in parts.items()
        if part == "dev" or encoders.has_file(path)
    }
    return fine_tune(data, out, seed, quick, variant, {"train": read(folder / "stsb-en-train.csv")}, tests)


def fine_tune(data: Path, out: Path, seed: int, quick: bool, variant: str, parts: Any, tests: Any) -> dict[str, Any]:
    """Train MiniLM on pairs, unless the variant is zero-shot, and write the cosines of the test pairs."""
    minilm = encoders.find_minilm(data)
    if variant == "zero-shot":
        model = qkv.load(minilm, device=frame.device(), dtype="float32")
        facts: dict[str, Any] = {"parameters": sum(one.numel() for one in model.network.parameters()), "seconds": 0.0}
    else:
        files = encoders.write_parts(
            out, {part: encoders.sample(records, quick) for part, records in parts.items()}, quick
        )
        trained = frame.train(RECIPE, out, {**files, "model.from": minilm}, seed=seed, quick=quick)
        model, facts = trained.load(), trained.to_dict()
    lines = [line for part, records in tests.items() for line in encoders.compare(model, records, part)]
    frame.write_jsonl(out / "predictions.jsonl", lines)
    return facts


def score(predictions: list[dict[str, Any]]) -> dict[str, Any]:
    """Spearman's and Pearson's correlation of cosines and scores, on each part."""
    return {
        f"{part}_{metric.__name__}": encoders.compute(metric, lines, "score", scale=1)
        for part, lines in encoders.split_parts(predictions).items()
        for metric in (metrics.spearman, metrics.pearson)
    }
