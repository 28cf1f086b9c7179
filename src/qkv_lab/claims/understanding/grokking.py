"""Grokking: with weight decay, a model generalises long after it has learned its training data by heart."""

import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from qkv.data import FileLocation, Record
from qkv.tasks.evaluate import evaluate
from qkv_lab.claim import Chart, Check, Claim, Quote
from qkv_lab.experiment import Experiment, save_steps
from qkv_lab.table import Point, Table

ACCURACY = "accuracy"
NORM = "norm of all weights"
DECAY, NO_DECAY = "weight decay", "no weight decay"
TRAINING, HELD_OUT = "training", "held out"
LEARNED = 0.9
"""The accuracy from which a set counts as learned."""
RECIPE = {
    "objective.kind": "classification",
    "tokenizer.kind": "word",
    "tokenizer.min_frequency": 1,
    "data.max_length": 8,
    "data.layout": "padded",
    "model.width": 64,
    "model.layers": 1,
    "model.heads": 4,
    "model.ffn_width": 128,
    "model.feedforward": "relu",
    "model.position": "learned",
    "model.dropout": 0.0,
    "model.head.dropout": 0.0,
    "model.init": "normal",
    "train.batch_tokens": 1_000_000,  # all examples in each step
    "train.lr": 0.01,
    "train.schedule": "constant",
    "train.warmup": 20,
    "train.weight_decay_on": "all",
}


@dataclass(frozen=True)
class GrokkingSettings:
    """Addition modulo p, the fraction of pairs that are trained on, and the training."""

    modulus: int = 31
    fraction: float = 0.65
    weight_decay: float = 1.0
    steps: int = 600
    save_every: int = 75


def run(experiment: Experiment) -> Iterator[Point]:
    """Train on a part of the addition table; along the training, measure the accuracy on both parts."""
    settings = experiment.settings
    splits = split_table(settings.modulus, settings.fraction, random.Random(experiment.seed))
    keys = {**RECIPE, **save_steps(settings.save_every), "train.steps": settings.steps}
    for key, split in (("data.train", TRAINING), ("data.valid", HELD_OUT)):
        keys[key] = experiment.write_records(f"{split}.jsonl", (record.fields for record in splits[split]))
    for name, decay in ((DECAY, settings.weight_decay), (NO_DECAY, 0.0)):
        trained = experiment.train(name, {**keys, "train.weight_decay": decay})
        for step, network in experiment.snapshots(name):
            for split, records in splits.items():
                metrics = evaluate(network, trained.tokenizer, trained.config, records).metrics
                yield Point(ACCURACY, f"{name}, {split}", step, metrics["accuracy"])
            squares = sum(float(weight.detach().square().sum()) for weight in network.parameters())
            yield Point(NORM, name, step, squares**0.5)


def split_table(modulus: int, fraction: float, generator: random.Random) -> dict[str, list[Record]]:
    """The addition table in two parts. a + b and b + a are in the same part, so no answer can be copied."""
    splits: dict[str, list[Record]] = {TRAINING: [], HELD_OUT: []}
    for a in range(modulus):
        for b in range(a, modulus):
            split = TRAINING if generator.random() < fraction else HELD_OUT
            for text in sorted({f"{a} {b}", f"{b} {a}"}):
                splits[split].append(Record({"text": text, "label": str((a + b) % modulus)}, FileLocation("")))
    return splits


def check(table: Table) -> list[Check]:
    """The held-out part is learned later than the training part, and not without weight decay."""
    names = [f"{name}, {split}" for name in (DECAY, NO_DECAY) for split in (TRAINING, HELD_OUT)]
    curves = {name: table.curve(ACCURACY, name) for name in names}
    steps = [float(step) for step in table.xs(ACCURACY)]
    memorised, generalised = (first_step(curves[f"{DECAY}, {split}"], steps) for split in (TRAINING, HELD_OUT))
    without = [curves[f"{NO_DECAY}, {split}"][steps[-1]] for split in (TRAINING, HELD_OUT)]
    norms = [table.mean(NORM, name, steps[-1]) for name in (DECAY, NO_DECAY)]
    difference, half = table.difference(NORM, (NO_DECAY, steps[-1]), (DECAY, steps[-1]))
    return [
        Check(
            f"the held-out part is learned ({LEARNED:.0%}), and at least three times as late as the training part",
            3 * memorised <= generalised < math.inf,
            f"training part by step {memorised:.0f}, held-out part by step {generalised:.0f}",
        ),
        Check(
            "without weight decay the model learns the training part only (held out below 20% at the end)",
            without[0] > LEARNED and without[1] < 0.2,
            f"training {without[0]:.0%}, held out {without[1]:.0%}",
        ),
        Check(
            "with weight decay the weights are smaller (the difference exceeds its confidence interval)",
            difference > half,
            f"norm {norms[0]:.1f} against {norms[1]:.1f}",
            needs_all_seeds=True,
        ),
    ]


def first_step(curve: dict[float | str, float], steps: Sequence[float]) -> float:
    """The first step at which an accuracy reaches the limit; infinite if it never does."""
    return next((step for step in steps if curve[step] >= LEARNED), math.inf)


def example() -> None:
    """The idea in a few lines."""
    import torch

    p, k = 31, 3  # a circuit that Nanda et al. (2023) found in such models: numbers are angles on a circle
    angles = 2 * torch.pi * k * torch.arange(p) / p
    numbers = torch.polar(torch.ones(p), angles)
    a, b = 17, 20
    product = numbers[a] * numbers[b]  # multiplying unit complex numbers adds their angles
    logits = (product * numbers.conj()).real  # cos(w(a + b − c)) is largest at c = a + b mod p
    print(f"{a} + {b} mod {p} =", int(logits.argmax()), "=", (a + b) % p)


CLAIM = Claim(
    name="grokking",
    chapter="understanding",
    title="Grokking: generalisation can come long after memorisation",
    quotes=(Quote("Adaptive learning + weight decay for better generalization.", "inside"),),
    question="Does a model that knows its training data by heart still learn the rule behind them?",
    method="A Transformer with one layer learns addition modulo p from a part of the addition table; a + b and b + a "
    "are always in the same part. Every step uses all training pairs (Power et al. 2022). We measure the accuracy on "
    "both parts along the training, with and without weight decay.",
    lesson="The model has two ways to fit the training part: a table with an entry for each pair, or a rule that "
    "covers all pairs. The table is found first. After that the training loss is almost zero, and without weight "
    "decay little changes. Weight decay keeps removing weights that the loss does not need. The rule produces the "
    "same logits with smaller weights than the table (Varma et al. 2023), so the model slowly changes over to it. A "
    "training accuracy of 100% therefore does not mean that learning is over, and a validation curve that was flat "
    "for a long time can still rise.",
    limits="Grokking is clear in small models that learn a rule from a small table in full batches; language models "
    "rarely see an example so often. The delay depends on the fraction of pairs, the learning rate and the seed. The "
    "norm of all weights does not fall when the model generalises: the experiment shows that weight decay matters, "
    "but not how.",
    settings={
        "mini": GrokkingSettings(7, steps=4, save_every=2),
        "small": GrokkingSettings(),
        "full": GrokkingSettings(53, fraction=0.5, steps=4000, save_every=200),
    },
    run=run,
    check=check,
    charts=(Chart(measure=ACCURACY, x="training step", is_fraction=True), Chart(measure=NORM, x="training step")),
    example=example,
)
