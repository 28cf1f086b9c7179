"""Sentiment of sentences from film reviews (Stanford Sentiment Treebank).

Data: sst/stsa.binary.*.txt and sst/stsa.fine.*.txt: 6,920 sentences with two classes, 8,544 with five. The phrases of
the treebank are not used. A tenth of the training sentences is for validation; dev (872, 1,101) is only scored, and so
is test (1,821, 2,210) if its file is there. A model of five classes is scored on the two classes as well: it compares
the sums of the probabilities of the two negative and the two positive classes.
Published: GLUE SST-2 test, trained on phrases as well: BERT-Tiny 83.2, BERT-Mini 85.9, BERT-Small 89.7 (README of
github.com/google-research/bert).
Goal: SST-2 dev at least 88 % from MiniLM, and at least 80 % from scratch.
"""

from pathlib import Path
from typing import Any

from qkv import Model
from rows import encoders, frame

VARIANTS = ("binary", "fine", "binary-scratch", "fine-scratch")

SCRATCH = """
[data]
max_length = 128
valid_fraction = 0.1

[tokenizer]
kind = "wordpiece"
vocab_size = 16000
lowercase = true

[model]
width = 256
layers = 1
position = "none"
dropout = 0.5
head = {pool = "mean", dense = "none", dropout = 0.5}

[objective]
kind = "classification"
label_smoothing = 0.1

[train]
steps = 500
batch_tokens = 1024
lr = 1e-3
weight_decay = 0.1
weight_decay_on = "all"
ema_decay = 0.99
eval_examples = 1000
eval_every = 25
max_eval_fraction = 1.0
keep_checkpoints = 1
final = "best"
"""


def read(path: Path) -> list[dict[str, str]]:
    """The sentences of a file and their labels."""
    pairs = [line.split(" ", 1) for line in frame.read_lines(path)]
    return [{"text": text, "label": label} for label, text in pairs]


def run(data: Path, out: Path, seed: int, quick: bool, variant: str) -> dict[str, Any]:
    """Train on the sentences, and predict those of dev and test."""
    name, _, start = variant.partition("-")
    train = encoders.sample(read(find(data, name, "train")), quick)
    changes = encoders.write_parts(out, {"train": train}, quick)
    if start == "scratch":
        trained = frame.train(SCRATCH, out, changes, seed=seed, quick=quick)
    else:
        changes["model.from"] = encoders.find_minilm(data)
        trained = frame.train(encoders.CLASSIFIER, out, changes, seed=seed, quick=quick)
    model, lines = trained.load(), []
    for part in ("dev", "test"):
        if part == "dev" or encoders.has_file(find(data, name, part)):
            lines += encoders.classify(model, encoders.sample(read(find(data, name, part)), quick), part)
            if name == "fine":
                binary = encoders.sample(read(find(data, "binary", part)), quick)
                lines += classify_in_two(model, binary, f"{part}, two classes")
    frame.write_jsonl(out / "predictions.jsonl", lines)
    return trained.to_dict()


def classify_in_two(model: Model, records: encoders.Lines, part: str) -> list[dict[str, Any]]:
    """The more probable of two classes, for a model with five: 0 and 1 are negative, 3 and 4 positive."""
    lines = []
    found = model.classify([one["text"] for one in records], batch_size=encoders.BATCH_SIZE, too_long="truncate")
    for one, result in zip(records, found, strict=True):
        negative, positive = (sum(result.probabilities.get(label, 0.0) for label in pair) for pair in ("01", "34"))
        probability = positive / ((negative + positive) or 1.0)
        lines.append({"part": part, **one, "prediction": str(int(probability > 0.5)), "probability": probability})
    return lines


def find(data: Path, name: str, part: str) -> Path:
    """The file of a part, without the ending of its compression."""
    return data / f"sst/stsa.{name}.{part}.txt"


def score(predictions: list[dict[str, Any]]) -> dict[str, Any]:
    """The accuracy on each part."""
    return {part: encoders.accuracy(lines) for part, lines in encoders.split_parts(predictions).items()}
