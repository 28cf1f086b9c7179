"""Antimicrobial peptides, or other ones (AMPlify).

Data: amplify_amp/AMPlify_*.fa: 6,676 training and 1,670 test peptides, half of them antimicrobial.
Published: AMPlify, an ensemble of recurrent networks with attention, accuracy 93.7, AUROC 98.4 (Li et al. 2022).
Goal: accuracy of at least 93. Peptides of training and test data are similar, so the variant `clusters` holds out
whole clusters of similar peptides (`protein_clusters`) instead. The nearest neighbour is the training peptide with
most words of five residues in common.
"""

from pathlib import Path
from random import Random
from typing import Any

import numpy as np

from qkv.tasks import metrics
from rows import encoders, frame, protein_clusters

VARIANTS = ("published", "clusters")
CLASSES = {"AMP": "AMPlify_AMP_{}_common.fa", "other": "AMPlify_non_AMP_{}_balanced.fa"}
RECIPE = """
[data]
modality = "protein"
max_length = 256
too_long = "truncate"

[tokenizer]
kind = "char"

[model]
width = 128
layers = 2
dropout = 0.3
embedding_width = 32
embedding_window = 4
head = {pool = "mean", dense = "none", dropout = 0.3}

[objective]
kind = "classification"
label_smoothing = 0.05

[train]
epochs = 20
batch_tokens = 2048
lr = 1e-3
ema_decay = 0.99
eval_examples = 700
keep_checkpoints = 1
"""


def read(folder: Path, part: str) -> list[dict[str, Any]]:
    """The peptides of the training or the test files with their classes."""
    files = {label: folder / name.format(part) for label, name in CLASSES.items()}
    return [{"text": one, "label": label} for label, path in files.items() for one in protein_clusters.read_fasta(path)]


def run(data: Path, out: Path, seed: int, quick: bool, variant: str) -> dict[str, Any]:
    """Train a classifier, and predict the test peptides; the nearest neighbour predicts them, too."""
    train, test = (read(data / "amplify_amp", part) for part in ("train", "test"))
    if variant == "clusters":
        every = train + test
        held = protein_clusters.split_clusters(protein_clusters.cluster([one["text"] for one in every]), 0.2)
        train = [one for one, is_held in zip(every, held, strict=True) if not is_held]
        test = [one for one, is_held in zip(every, held, strict=True) if is_held]
    train, test = encoders.sample(train, quick), encoders.sample(test, quick)
    kept, valid = frame.hold_out(train, 700)
    changes = encoders.write_parts(out, {"train": kept, "valid": valid}, quick)
    trained = frame.train(RECIPE, out, changes, seed=seed, quick=quick)
    found = trained.load().classify([one["text"] for one in test], batch_size=128, too_long="truncate")
    best, shared = protein_clusters.nearest([one["text"] for one in train], [one["text"] for one in test])
    rng = Random(0)
    lines = [
        {
            **one,
            "prediction": result.label,
            "probability": result.probabilities["AMP"],
            "nearest": train[j]["label"] if j >= 0 else rng.choice(list(CLASSES)),
            "shared": similarity,
        }
        for one, result, j, similarity in zip(test, found, best, shared, strict=True)
    ]
    frame.write_jsonl(out / "predictions.jsonl", lines)
    return trained.to_dict()


def auroc(probabilities: np.ndarray, is_positive: np.ndarray) -> float:
    """The probability that a positive has a higher one than a negative; ties count half."""
    _, rank, counts = np.unique(probabilities, return_inverse=True, return_counts=True)
    mean_rank = (np.cumsum(counts) - (counts - 1) / 2)[rank]
    positives = int(is_positive.sum())
    negatives = len(is_positive) - positives
    return float((mean_rank[is_positive].sum() - positives * (positives + 1) / 2) / (positives * negatives))


def score(predictions: list[dict[str, Any]]) -> dict[str, Any]:
    """The accuracy and AUROC with intervals, the nearest neighbour's accuracy, and the fraction of near copies."""
    probabilities = np.array([one["probability"] for one in predictions])
    is_positive = np.array([one["label"] == "AMP" for one in predictions])
    draws = np.random.default_rng(0).integers(0, len(predictions), (1000, len(predictions)))
    values = [
        auroc(probabilities[draw], is_positive[draw]) for draw in draws if 0 < is_positive[draw].sum() < len(draw)
    ]
    low, high = np.quantile(values, [0.025, 0.975])
    area = {"value": 100 * auroc(probabilities, is_positive), "low": 100 * float(low), "high": 100 * float(high)}
    near = [{**one, "prediction": one["nearest"]} for one in predictions]
    right = metrics.mean_score([float(one["shared"] >= 0.3) for one in predictions])
    return {
        "accuracy": encoders.accuracy(predictions),
        "auroc": area,
        "nearest neighbour": encoders.accuracy(near),
        "share 30 % of their words with a training peptide": encoders.with_interval(right),
    }
