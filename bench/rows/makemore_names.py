"""A character model of 32,033 names (makemore).

Data: makemore_names/names.txt. Split: makemore's own, 1,000 test names drawn with its seed. Another 1,000 names of the
rest are for validation.
Published: a Transformer of about 200,000 parameters has a test loss of about 1.92 nats per character, the end of a name
included (README of github.com/karpathy/makemore).
Goal: at most 1.92 with at most 210,000 parameters.
"""

from pathlib import Path
from typing import Any

import torch

from rows import frame

RECIPE = """
[data]
max_length = 512

[tokenizer]
kind = "char"
vocab_size = 64
min_frequency = 1

[model]
width = 64
layers = 4
heads = 4
ffn_width = 176
dropout = 0.1

[objective]
kind = "causal_lm"

[train]
steps = 3000
batch_tokens = 8192
optimizer = "muon"
lr = 5e-3
weight_decay = 0.1
schedule = "cosine"
ema_decay = 0.99
final = "best"
metric = "loss"
"""


def split(names: list[str]) -> tuple[list[str], list[str], list[str]]:
    """Training, validation and test names. The test names are those of makemore with its default seed."""
    order = torch.randperm(len(names), generator=torch.Generator().manual_seed(3407)).tolist()
    shuffled = [names[i] for i in order]
    size = min(1000, len(names) // 10)
    return shuffled[: -2 * size], shuffled[-2 * size : -size], shuffled[-size:]


def run(data: Path, out: Path, seed: int, quick: bool) -> dict[str, Any]:
    """Train on the names, and write the loss of each test name."""
    names = [name.strip() for name in frame.read_lines(data / "makemore_names/names.txt")]
    parts = split(frame.shorten([name for name in names if name], quick))
    records = [[{"text": name} for name in part] for part in parts]
    changes = frame.write_parts(out, train=records[0], valid=records[1])
    trained = frame.train(RECIPE, out, changes, seed=seed, quick=quick)
    frame.write_jsonl(out / "predictions.jsonl", frame.text_losses(trained, parts[2]))
    return trained.to_dict()


def score(predictions: list[dict[str, Any]]) -> dict[str, Any]:
    """Nats per character, the end of a name included."""
    nats, tokens = [line["nats"] for line in predictions], [line["tokens"] for line in predictions]
    return {"loss": frame.interval(nats, tokens)}
