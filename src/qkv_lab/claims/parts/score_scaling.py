"""Without the division by √d, scores grow with the head dimension, and the softmax passes no gradient."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch

from qkv_lab.claim import Chart, Check, Claim, Quote
from qkv_lab.experiment import Experiment
from qkv_lab.table import Point, Table

SPREAD = "standard deviation of the scores"
GRADIENT = "gradient of the softmax (norm)"


@dataclass(frozen=True)
class ScoreScalingSettings:
    """Random queries and keys: head dimensions, keys per query, and queries."""

    head_dims: tuple[int, ...] = (4, 16, 64, 256, 1024)
    num_keys: int = 64
    num_queries: int = 2000


def run(experiment: Experiment) -> Iterator[Point]:
    """The spread of the scores of random vectors, and the norm of the softmax's Jacobian, by head dimension."""
    settings = experiment.settings
    for dim in settings.head_dims:
        queries = torch.randn(settings.num_queries, dim)
        keys = torch.randn(settings.num_keys, dim)
        scores = queries @ keys.T
        for name, scaled in (("QKᵀ", scores), ("QKᵀ / √d", scores / dim**0.5)):
            yield Point(SPREAD, name, dim, scaled.std().item())
            yield Point(GRADIENT, name, dim, jacobian_norm(scaled.softmax(dim=1)).item())


def jacobian_norm(weights: torch.Tensor) -> torch.Tensor:
    """The mean Frobenius norm of the Jacobian of the softmax, diag(p) − p pᵀ, over rows p of `weights`."""
    squares = weights**2
    norm = squares.sum(1) - 2 * (weights**3).sum(1) + squares.sum(1) ** 2
    return norm.clamp(min=0).sqrt().mean()


def check(table: Table) -> list[Check]:
    """The spread grows as √d without the division, and stays at 1 with it."""
    dims = table.xs(SPREAD)
    growth, flat = table.exponent(SPREAD, "QKᵀ"), table.exponent(SPREAD, "QKᵀ / √d")
    gradients = [table.mean(GRADIENT, name, dims[-1]) for name in ("QKᵀ", "QKᵀ / √d")]
    first = table.mean(GRADIENT, "QKᵀ", dims[0])
    return [
        Check(
            "unscaled scores grow as √d (exponent 0.45–0.55), and scaled ones do not grow (exponent below 0.05)",
            0.45 <= growth <= 0.55 and abs(flat) < 0.05,
            f"exponents {growth:.2f} and {flat:.2f}",
        ),
        Check(
            f"without scaling, the gradient of the softmax at d = {dims[-1]} is less than half of the gradient at d = "
            f"{dims[0]}",
            gradients[0] < first / 2,
            f"{gradients[0]:.3f} against {first:.3f}; scaled {gradients[1]:.3f}",
        ),
    ]


def example() -> None:
    """The idea in a few lines."""
    import torch

    for dim in (4, 64, 1024):
        queries, keys = torch.randn(1000, dim), torch.randn(64, dim)
        scores = queries @ keys.T
        weights = scores.softmax(dim=1).max(dim=1).values.mean()
        scaled = (scores / dim**0.5).softmax(dim=1).max(dim=1).values.mean()
        print(f"d = {dim}: spread {scores.std():.1f}, largest weight {weights:.2f}, scaled {scaled:.2f}")


CLAIM = Claim(
    name="score-scaling",
    chapter="parts",
    title="Scores are divided by √d to keep the softmax soft",
    quotes=(
        Quote("When dimensionality 𝑑 becomes large, dot products between vectors tend to become large.", "lecture"),
        Quote("inputs to the softmax function can be large, making the gradients small.", "lecture"),
    ),
    question="How do scores and the gradient of the softmax change with the head dimension, with and without √d?",
    method="Queries and keys are standard normal vectors, as at initialisation. We measure the standard deviation of "
    "their scores, and the norm of the Jacobian of the softmax over 64 keys.",
    lesson="A dot product of d independent terms has variance d. The division by √d gives scores a variance of 1 for "
    "every d. Without it, the softmax puts nearly all weight on one key, and its Jacobian diag(p) − ppᵀ goes to zero.",
    limits="These are random vectors. A trained model can scale its queries itself; T5 does so, with a smaller "
    "initialisation instead of the division.",
    settings={
        "mini": ScoreScalingSettings((4, 64, 1024), num_queries=200),
        "small": ScoreScalingSettings(),
        "full": ScoreScalingSettings(),
    },
    run=run,
    check=check,
    charts=(
        Chart(measure=SPREAD, x="head dimension d", log_x=True, log_y=True),
        Chart(measure=GRADIENT, x="head dimension d", log_x=True),
    ),
    example=example,
    is_deterministic=True,
)
