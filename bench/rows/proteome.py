"""Masked language modelling of the human proteome.

Data: promb/resources/uniprot_sprot_human.fasta of the package promb: 20,417 proteins, 11.4M residues. Whole clusters of
similar proteins are held out (`protein_clusters`), 5 % of all proteins.
Published: ESM-2 8M, perplexity 13.1 on UniRef50 (other proteins, and far more of them).
Goal: below the entropy of single residues in 20 minutes of one core (`train.cpu_minutes`), however busy the machine is.
"""

import math
from collections import Counter
from pathlib import Path
from typing import Any

from qkv.data.records import FileLocation, Record
from qkv.tasks.evaluate import evaluate
from rows import encoders, frame, protein_clusters

RECIPE = """
[data]
modality = "protein"
max_length = 256
too_long = "split"

[tokenizer]
kind = "char"

[model]
width = 128
layers = 4
dropout = 0.0
embedding_width = 32
embedding_window = 8

[objective]
kind = "masked_lm"
mask_prob = 0.15

[train]
cpu_minutes = 20
batch_tokens = 4096
lr = 5e-3
optimizer = "muon"
keep_checkpoints = 1
"""


def run(data: Path, out: Path, seed: int, quick: bool) -> dict[str, Any]:
    """Train on most clusters, and compute the loss of masked residues of the others."""
    path = data / "promb" / "resources" / "uniprot_sprot_human.fasta"
    sequences = encoders.sample(protein_clusters.read_fasta(path), quick)
    clusters = protein_clusters.cluster(sequences)
    held = protein_clusters.split_clusters(clusters, 0.05)
    parts = {
        part: [{"text": one} for one, is_held in zip(sequences, held, strict=True) if is_held == (part == "valid")]
        for part in ("train", "valid")
    }
    changes = encoders.write_parts(out, parts, quick)
    trained = frame.train(RECIPE, out, changes, seed=seed, quick=quick)
    residues = Counter("".join(one["text"] for one in parts["train"]))
    total = residues.total()
    lines = []
    model = trained.load()
    for one in parts["valid"]:
        unigram = [-math.log(residues.get(residue, 1) / total) for residue in one["text"]]
        record = Record(one, FileLocation("valid"))
        found = evaluate(model.network, model.tokenizer, model.config, [record], max_samples=0).metrics
        lines.append({"residues": len(one["text"]), "loss": found["loss"], "unigram": sum(unigram)})
    frame.write_jsonl(out / "predictions.jsonl", lines)
    return {**trained.to_dict(), "clusters": len(set(clusters)), "largest cluster": max(Counter(clusters).values())}


def score(predictions: list[dict[str, Any]]) -> dict[str, Any]:
    """The loss of a masked residue in nats, and the loss of single residues; proteins are resampled."""
    lengths = [one["residues"] for one in predictions]
    loss = frame.interval([one["loss"] * one["residues"] for one in predictions], lengths)
    unigram = frame.interval([one["unigram"] for one in predictions], lengths)
    return {"loss": loss, "perplexity": {name: math.exp(value) for name, value in loss.items()}, "unigram": unigram}
