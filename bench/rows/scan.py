"""Commands to actions (SCAN): the random split, and lengths that do not occur in training.

Data: scan/tasks_{train,test}_{simple,length}.txt. `simple` is the random split; `length-P` is the published length
split (actions of up to 22 words in training, 24 to 48 in test) with positions P: `sinusoidal` are absolute, `rotary`,
`t5` and `alibi` are relative; `cutoff26-P` is the same data split after 26 words. `cutoff18-P` has only the training
commands of the length split, split after 18 words: the recipe was chosen on it.
Published: Csordás et al. 2021 (abstract): relative positions give 100 % on the length split with cutoff 26.
Goal: 100 % on simple; relative positions far above absolute ones on the length splits.
"""

from pathlib import Path
from typing import Any

from rows import frame

CUTOFFS = {"cutoff26": 26, "cutoff18": 18}  # the most words of a training target
POSITIONS = ("sinusoidal", "rotary", "t5", "alibi")
VARIANTS = (
    "simple",
    *(f"{split}-{position}" for split in ("length", *CUTOFFS) for position in POSITIONS),
)
RECIPE = """
[data]
max_length = 256
max_source_length = 128

[tokenizer]
kind = "word"
vocab_size = 100
min_frequency = 1

[model]
width = 128
heads = 8
ffn_width = 256
layers = 3
dropout = 0.1             # with 0.5, as by Csordás et al., a pre-norm model of this size depends on the noise
embedding_scale = "sqrt"

[objective]
kind = "seq2seq"

[train]
steps = 5000
batch_tokens = 16_384
lr = 1e-3
warmup = 200
schedule = "linear"
weight_decay = 0.0
num_workers = 2
eval_every = 500
eval_examples = 100
metric = "exact_match"
"""


def read(path: Path) -> list[dict[str, str]]:
    """The commands and their actions."""
    pairs = [line.removeprefix("IN: ").split(" OUT: ") for line in frame.read_lines(path)]
    return [{"source": command.strip(), "target": actions.strip()} for command, actions in pairs]


def run(data: Path, out: Path, seed: int, quick: bool, variant: str) -> dict[str, Any]:
    """Train without early stopping, and predict the actions of the test commands."""
    split, _, position = variant.partition("-")
    name = "simple" if split == "simple" else "length"
    train, test = (read(data / "scan" / f"tasks_{part}_{name}.txt") for part in ("train", "test"))
    if split in CUTOFFS:
        limit, every = CUTOFFS[split], train if split == "cutoff18" else train + test
        train = [record for record in every if len(record["target"].split()) <= limit]
        test = [record for record in every if len(record["target"].split()) > limit]
    train, valid = frame.hold_out(frame.shorten(train, quick), 300)
    test = frame.shorten(test, quick)
    changes = frame.write_parts(out, train=train, valid=valid) | {"model.position": position or "rotary"}
    trained = frame.train(RECIPE, out, changes, seed=seed, quick=quick)
    frame.write_jsonl(out / "predictions.jsonl", frame.generate(trained, test))
    return trained.to_dict()


def score(predictions: list[dict[str, Any]]) -> dict[str, Any]:
    """Exact match, and the percentage of predictions that are wrong at most in where they end."""
    words = [(line["prediction"].split(), line["references"][0].split()) for line in predictions]
    agree = [all(a == b for a, b in zip(found, expected, strict=False)) for found, expected in words]
    return {"exact match": frame.exact_match(predictions), "right as far as they go": frame.interval(agree, scale=100)}
