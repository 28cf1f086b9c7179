"""Attention without parameters is a similarity: symmetric, and each token mostly attends to itself."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch

from qkv_lab.claim import Chart, Check, Claim, Quote
from qkv_lab.experiment import Experiment
from qkv_lab.table import Point, Table

OWN = "weight of a token on itself"
ASYMMETRY = "asymmetry of the scores, ‖S − Sᵀ‖ / ‖S‖"
READ = "fraction of the embedding that one head reads"
NONE, PROJECTED, SLICED = "without parameters", "with W_Q and W_K", "a slice of the embedding"


@dataclass(frozen=True)
class AttentionParametersSettings:
    """The widths of random embeddings, the number of tokens, and of heads."""

    widths: tuple[int, ...] = (16, 64, 256)
    num_tokens: int = 64
    heads: int = 8


def run(experiment: Experiment) -> Iterator[Point]:
    """Compare softmax(XXᵀ/√C) with the scores of random projections, and ask what a head reads of a token."""
    settings = experiment.settings
    for width in settings.widths:
        x = torch.randn(settings.num_tokens, width, dtype=torch.float64)
        query, key = (torch.randn(width, width, dtype=torch.float64) / width**0.5 for _ in range(2))
        for name, scores in ((NONE, x @ x.T), (PROJECTED, (x @ query) @ (x @ key).T)):
            scores = scores / width**0.5
            yield Point(OWN, name, width, float(scores.softmax(dim=1).diagonal().mean()))
            yield Point(ASYMMETRY, name, width, float((scores - scores.T).norm() / scores.norm()))
        dim = width // settings.heads
        yield Point(READ, PROJECTED, width, float((query[:, :dim] != 0).any(dim=1).double().mean()))
        yield Point(READ, SLICED, width, dim / width)


def check(table: Table) -> list[Check]:
    """Without parameters: symmetric scores, and weight on itself. A head reads the whole embedding."""
    widest = table.xs(OWN)[-1]
    own = [table.mean(OWN, name, widest) for name in (NONE, PROJECTED)]
    asymmetry = [max(table.curve(ASYMMETRY, NONE).values()), min(table.curve(ASYMMETRY, PROJECTED).values())]
    read = table.curve(READ, PROJECTED)
    return [
        Check(
            f"without parameters, a token of width {widest} keeps more than 0.95 of its weight for itself, and scores "
            "are symmetric; with random projections, less than 0.1, and scores are not symmetric",
            own[0] > 0.95 and own[1] < 0.1 and asymmetry[0] < 1e-12 and asymmetry[1] > 0.5,
            f"weight {own[0]:.3f} and {own[1]:.3f}; asymmetry {asymmetry[0]:.0e} and {asymmetry[1]:.2f}",
        ),
        Check(
            "a head reads every number of the embedding, not a slice of it",
            min(read.values()) == 1.0,
            f"{min(read.values()):.0%}; a slice would be {table.mean(READ, SLICED, widest):.0%}",
        ),
    ]


def example() -> None:
    """The idea in a few lines."""
    import torch

    x, query, key = torch.randn(8, 64), torch.randn(64, 64) / 8, torch.randn(64, 64) / 8
    for name, scores in (("no parameters", x @ x.T), ("projections", (x @ query) @ (x @ key).T)):
        weights = (scores / 8).softmax(dim=1)
        print(f"{name}: weight on itself {weights.diagonal().mean():.2f}, symmetric", torch.equal(scores, scores.T))
    one_head = query[:, :8]  # the queries of the first of eight heads
    print("numbers of the embedding that a head reads:", int((one_head != 0).any(dim=1).sum()), "of 64")


CLAIM = Claim(
    name="attention-parameters",
    chapter="parts",
    title="Attention without parameters is a similarity, and a head reads the whole embedding",
    quotes=(
        Quote("self-attention requires no parameters", "video", "in our words; true of softmax(XXᵀ)X only"),
        Quote(
            "each head sees the full sentence, but a different part of the embedding of each word",
            "video",
            "in our words; it is a part of the projected vectors",
        ),
    ),
    question="What can attention compute without parameters, and what does one head see of a token?",
    method="Tokens are random vectors. We compare the weights softmax(XXᵀ/√C) with the weights of random queries and "
    "keys: the weight of a token on itself, and how symmetric the scores are. Then we count the numbers of the "
    "embedding on which the query of one head of eight depends.",
    lesson="XXᵀ compares vectors with each other, and nothing is as similar to a token as the token itself. So each "
    "token mostly copies itself, and i looks at j as much as j looks at i: a word cannot look for its subject. The "
    "matrices W_Q and W_K make the two roles different. A head owns a slice of the queries, keys and values, which are "
    "computed from the whole embedding; it does not own a slice of the embedding.",
    limits="The vectors are random. Trained embeddings are not, and similar words attend to each other. A head may "
    "learn to ignore a part of the embedding; nothing forces it to.",
    settings={
        "mini": AttentionParametersSettings((16, 256), 16),
        "small": AttentionParametersSettings(),
        "full": AttentionParametersSettings((16, 64, 256, 1024), 512),
    },
    run=run,
    check=check,
    charts=(
        Chart(measure=OWN, x="width C", log_x=True, is_fraction=True),
        Chart(measure=ASYMMETRY, x="width C", log_x=True),
        Chart(measure=READ, x="width C", log_x=True, is_fraction=True),
    ),
    example=example,
    is_deterministic=True,
)
