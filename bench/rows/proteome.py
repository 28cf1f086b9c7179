"""Masked language modelling of the human proteome.

Data: promb/resources/uniprot_sprot_human.fasta of the package promb: 20,417 proteins, 11.4M residues. Whole clusters of
similar proteins are held out (`protein_clusters`), 5 % of all proteins.
Published: ESM-2 8M, perplexity 13.1 on UniRef50 (other proteins, and far more of them).
Goal: below the entropy of single residues in 20 minutes of one core (`train.cpu_minutes`), however busy the machine is.
"""

import math
from collections import Counter
from pathlib import Path
from random import Random
from typing import Any

import torch

import qkv
from rows import encoders, frame, protein_clusters

MAX_RESIDUES = 254
"""Of a held-out protein: its start, and two special tokens, are what the model reads in training."""
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
    total, rng, model = residues.total(), Random(0), trained.load()
    lines = []
    for one in parts["valid"]:
        text = one["text"][:MAX_RESIDUES]
        chosen = sorted(rng.sample(range(len(text)), max(1, round(0.15 * len(text)))))
        unigram = [-math.log(residues.get(text[i], 1) / total) for i in chosen]
        line = {"masked": len(chosen), "loss": masked_loss(model, text, chosen), "unigram": sum(unigram)}
        lines.append({"residues": len(text), **line})
    frame.write_jsonl(out / "predictions.jsonl", lines)
    return {**trained.to_dict(), "clusters": len(set(clusters)), "largest cluster": max(Counter(clusters).values())}


@torch.no_grad()
def masked_loss(model: qkv.Model, text: str, chosen: list[int]) -> float:
    """The summed loss of the chosen residues, all of which are masked.

    The validation loss of a run is lower: of the residues that it predicts, a tenth is not changed.
    """
    ids = torch.tensor([model.tokenizer.encode(text)], device=model.network.device)
    positions = torch.tensor(chosen, device=ids.device) + 1  # after <cls>
    masked = ids.clone()
    masked[0, positions] = model.tokenizer.special_tokens.mask
    log_probs = model.network(masked)[0, positions].float().log_softmax(-1)
    return float(-log_probs.gather(1, ids[0, positions, None]).sum())


def score(predictions: list[dict[str, Any]]) -> dict[str, Any]:
    """The loss of a masked residue in nats, and the loss of single residues; proteins are resampled."""
    counts = [one["masked"] for one in predictions]
    loss, unigram = (frame.interval([one[name] for one in predictions], counts) for name in ("loss", "unigram"))
    difference = frame.interval([one["loss"] - one["unigram"] for one in predictions], counts)
    perplexity = {name: math.exp(value) for name, value in loss.items()}
    return {"loss": loss, "perplexity": perplexity, "unigram": unigram, "difference": difference}
