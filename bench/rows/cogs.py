"""Semantic parsing with compositional generalisation (COGS).

Data: cogs/train.tsv, dev.tsv, test.tsv, and gen.tsv if it is there. Sentences and logical forms are split at spaces.
Published: Csordás et al. 2021 (abstract): a Transformer on the generalisation set, 35 % before their changes and 81 %
with them (relative positions, scaled embeddings, no early stopping).
Goal: at least 96 % exact match on test; on gen, above 35 %.
"""

from pathlib import Path
from typing import Any

from rows import frame

RECIPE = """
[data]
max_length = 512
max_source_length = 128

[tokenizer]
kind = "word"
vocab_size = 2000
min_frequency = 1

[model]
width = 256
heads = 4
ffn_width = 512
encoder.layers = 2
decoder.layers = 2
position = "t5"
dropout = 0.1

[objective]
kind = "seq2seq"

[train]
steps = 3000
batch_tokens = 16384
lr = 5e-4
warmup = 500
schedule = "linear"
final_lr_ratio = 0.1
weight_decay = 0.0
num_workers = 2
eval_examples = 200
metric = "exact_match"
eval_every = 1000
ema_decay = 0.995
"""


def read(path: Path) -> list[dict[str, str]]:
    """The sentences, their logical forms and their kinds of generalisation."""
    rows = [line.split("\t") for line in frame.read_lines(path)]
    return [{"source": row[0], "target": row[1], "kind": row[2]} for row in rows]


def run(data: Path, out: Path, seed: int, quick: bool) -> dict[str, Any]:
    """Train on train.tsv, without early stopping, and parse the sentences of the test parts."""
    names = ["train", "dev", "test"] + ["gen"] * any((data / "cogs").glob("gen.tsv*"))
    parts = {name: frame.shorten(read(data / "cogs" / f"{name}.tsv"), quick) for name in names}
    changes = frame.write_parts(out, train=parts["train"], valid=parts["dev"])
    trained = frame.train(RECIPE, out, changes, seed=seed, quick=quick)
    predictions = []
    for name in names[2:]:
        found = frame.generate(trained, parts[name])
        predictions += [
            {"part": name, "kind": record["kind"], **line} for record, line in zip(parts[name], found, strict=True)
        ]
    frame.write_jsonl(out / "predictions.jsonl", predictions)
    return trained.to_dict()


def score(predictions: list[dict[str, Any]]) -> dict[str, Any]:
    """Exact match of each part, and of each kind of generalisation."""
    groups: dict[str, list[dict[str, Any]]] = {}
    for line in predictions:
        groups.setdefault(f"{line['part']} exact match", []).append(line)
        if line["part"] == "gen":
            groups.setdefault(f"gen, {line['kind']}", []).append(line)
    return {name: frame.exact_match(lines) for name, lines in groups.items()}
