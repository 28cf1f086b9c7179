"""Secondary structure of proteins from their sequence alone, three or eight states for each residue.

Data: protein_ss_cb513/CB513_HHblits.csv (511 proteins, trained on) and TS115_HHblits.csv (115 proteins, the test set).
Published: single-sequence methods that were trained on about 10,000 proteins, Q3 72.6 to 74.3, Q8 about 60; random
coil, the most frequent state, Q3 42.7.
Goal: Q3 of at least 62 from scratch. The variants with `-pretrained` start from the encoder of the row `proteome`, for
which OUT/proteome-SEED must exist.
"""

import csv
from pathlib import Path
from typing import Any

from rows import encoders, frame, protein_clusters

VARIANTS = ("q3", "q8", "q3-pretrained", "q8-pretrained")
RECIPE = """
[data]
modality = "protein"
max_length = 512
too_long = "split"

[tokenizer]
kind = "char"

[model]
width = 128
layers = 2
dropout = 0.3
embedding_width = 32
embedding_window = 8
position = "t5"

[objective]
kind = "tagging"

[train]
epochs = 14
batch_tokens = 2048
lr = 1e-3
ema_decay = 0.99
eval_examples = 50
final = "best"
keep_checkpoints = 1
"""


def read(path: Path, states: str) -> list[dict[str, Any]]:
    """The proteins of a file: residues and states."""
    rows = csv.DictReader(frame.read_lines(path), skipinitialspace=True)
    return [{"tokens": row["input"].split(), "tags": row[states].split()} for row in rows]


def run(data: Path, out: Path, seed: int, quick: bool, variant: str) -> dict[str, Any]:
    """Train on the proteins of CB513, and tag those of TS115."""
    states = "dssp3" if variant.startswith("q3") else "dssp8"
    folder = data / "protein_ss_cb513"
    known = encoders.sample(read(folder / "CB513_HHblits.csv", states), quick)
    test = encoders.sample(read(folder / "TS115_HHblits.csv", states), quick)
    train, valid = frame.hold_out(known, 51)
    changes = encoders.write_parts(out, {"train": train, "valid": valid}, quick)
    recipe = RECIPE
    if variant.endswith("-pretrained"):
        start = RECIPE.index("[tokenizer]")
        recipe = RECIPE[:start] + RECIPE[RECIPE.index("[objective]") :]
        changes |= {"model.from": out.parent / f"proteome-{seed}" / "run", "train.lr": 3e-4, "train.epochs": 10}
    trained = frame.train(recipe, out, changes, seed=seed, quick=quick)
    frame.write_jsonl(out / "predictions.jsonl", encoders.tag(trained.load(), test, "test"))
    _, shared = protein_clusters.nearest(*(["".join(one["tokens"]) for one in part] for part in (known, test)))
    return {**trained.to_dict(), "most similar test protein": max(shared)}


def score(predictions: list[dict[str, Any]]) -> dict[str, Any]:
    """The percentage of residues with the right state; proteins are resampled."""
    return {"accuracy": encoders.tag_accuracy(predictions)}
