"""A softmax over the keys turns scores into weights that sum to 1. A sigmoid does not: its sums grow with the keys."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from qkv.blocks.attention import pattern
from qkv_lab.claim import Chart, Check, Claim, Quote
from qkv_lab.experiment import Experiment
from qkv_lab.table import Point, Table

SUM = "largest sum of the weights of a query"
NORM = "norm of the output / norm of a value"
EFFECT = "change of the other weights"
ROWS, COLUMNS, SIGMOID = "softmax over the keys", "softmax over the queries", "sigmoid"
NORMALISATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    ROWS: pattern,
    COLUMNS: lambda scores: scores.softmax(dim=-2),
    SIGMOID: torch.sigmoid,
}


@dataclass(frozen=True)
class SoftmaxRowsSettings:
    """Random queries, keys and values."""

    num_keys: tuple[int, ...] = (4, 16, 64, 256, 1024)
    head_dim: int = 64
    num_heads: int = 4


def run(experiment: Experiment) -> Iterator[Point]:
    """Weights and outputs of self-attention with random queries, keys and values, by the number of keys."""
    settings = experiment.settings
    for keys in settings.num_keys:
        q, k, v = torch.randn(3, settings.num_heads, keys, settings.head_dim, dtype=torch.float64)
        scores = q @ k.mT / settings.head_dim**0.5  # (H, T, S), T = S
        raised = scores.clone()
        raised[..., 0] += 1
        for name, normalise in NORMALISATIONS.items():
            weights = normalise(scores)
            yield Point(SUM, name, keys, weights.sum(-1).max().item())
            yield Point(NORM, name, keys, ((weights @ v).norm(dim=-1).mean() / v.norm(dim=-1).mean()).item())
            others = (normalise(raised) - weights)[..., 1:].abs().sum(-1)
            yield Point(EFFECT, name, keys, others.mean().item())


def check(table: Table) -> list[Check]:
    """Only the softmax over the keys gives weights that sum to 1."""
    fewest, most = (table.xs(SUM)[i] for i in (0, -1))
    sums = {name: table.mean(SUM, name, most) for name in NORMALISATIONS}
    growth, norms = table.exponent(SUM, SIGMOID), {name: table.exponent(NORM, name) for name in (ROWS, SIGMOID)}
    effects = {name: table.mean(EFFECT, name, fewest) for name in NORMALISATIONS}
    return [
        Check(
            "the weights of every query sum to 1 with a softmax over the keys, but not with a softmax over the "
            "queries or a sigmoid",
            abs(sums[ROWS] - 1) < 1e-9 and min(sums[COLUMNS], sums[SIGMOID]) > 1.1,
            f"largest sum with {most} keys: over the keys {sums[ROWS]:.3f}, over the queries {sums[COLUMNS]:.1f}, "
            f"sigmoid {sums[SIGMOID]:.0f}",
        ),
        Check(
            "sums of sigmoids grow in proportion to the number of keys (exponent 0.9–1.1)",
            0.9 <= growth <= 1.1,
            f"exponent {growth:.2f}",
        ),
        Check(
            "with a sigmoid the output grows with the number of keys (exponent above 0.3), with a softmax it shrinks",
            norms[ROWS] < 0 and norms[SIGMOID] > 0.3,
            f"exponents {norms[SIGMOID]:.2f} and {norms[ROWS]:.2f}",
        ),
        Check(
            "keys compete under a softmax: a higher score of one key lowers the other weights; under a sigmoid it does "
            "not",
            effects[ROWS] > 0.01 and effects[SIGMOID] == 0,
            f"{effects[ROWS]:.2f} and {effects[SIGMOID]:.0f} with {fewest} keys",
        ),
    ]


def example() -> None:
    """The idea in a few lines."""
    import torch

    for keys in (4, 64, 1024):
        scores = torch.randn(10, keys)  # 10 queries
        print(f"{keys} keys: softmax sums to {scores.softmax(dim=-1).sum(-1).mean():.2f}", end=", ")
        print(f"sigmoid to {scores.sigmoid().sum(-1).mean():.1f}")


CLAIM = Claim(
    name="softmax-rows",
    chapter="parts",
    title="A softmax over the keys, not a sigmoid, turns scores into weights",
    quotes=(
        Quote("Sigmoid is applied row-wise", "video", "wrong: a softmax"),
        Quote("The softmax ensures that the attention weights for each query sum to 1.", "review"),
    ),
    question="What changes if scores go through a sigmoid, or through a softmax over the wrong axis?",
    method="Queries, keys and values are standard normal. We turn their scores into weights in three ways. We measure "
    "the largest sum of the weights of a query, the length of the output relative to a value, and how much the other "
    "weights change in total if the score of one key rises by 1.",
    lesson="The softmax of a row compares the keys of one query with each other: its weights are shares of 1, and the "
    "output is an average of values, whatever the length. A sigmoid treats every score on its own, so “row-wise” means "
    "nothing for it. Its output is a sum that grows with the number of keys. The notes mean the softmax; their formula "
    "has it. A softmax over the queries normalises columns: then the weights of each key sum to 1, and "
    "the weights of a query do not.",
    limits="Attention with a sigmoid can be trained, if a bias of −ln(number of keys) keeps the sums near 1. The claim "
    "is about the notes' formula, which has no such bias.",
    settings={
        "mini": SoftmaxRowsSettings((4, 32, 256), num_heads=2),
        "small": SoftmaxRowsSettings(),
        "full": SoftmaxRowsSettings((4, 16, 64, 256, 1024, 4096)),
    },
    run=run,
    check=check,
    charts=(
        Chart(measure=SUM, x="keys", log_x=True, log_y=True),
        Chart(measure=NORM, x="keys", log_x=True, log_y=True),
    ),
    example=example,
    is_deterministic=True,
)
