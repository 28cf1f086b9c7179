"""Directions that are nearly orthogonal: how many fit into a space depends on how near is near enough."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from statistics import median

import torch
from torch import Tensor
from torch.nn import functional as F

from qkv_lab.claim import Chart, Check, Claim, Quote
from qkv_lab.experiment import Experiment
from qkv_lab.table import Point, Table, fit_exponent

FRACTION = "fraction of pairs within 89–91°"
LARGEST = "largest deviation from 90° (degrees)"
OPTIMISED = "largest deviation from 90° after optimisation (degrees)"
COUNT = "vectors until a pair exceeds the tolerance"
PAIRS, RANDOM, TRAINED, BOUND = "random pairs", "random", "optimised", "Welch bound"
LOOSE, TIGHT = 30, 1
TOLERANCES = (LOOSE, 20, TIGHT)
"""Deviations from 90° in degrees."""
NOTES_DIM, NOTES_VECTORS = 100, 10_000
"""The example in the notes."""


@dataclass(frozen=True)
class OrthogonalSettings:
    """Numbers of vectors and dimensions."""

    few_vectors: int = 100
    few_dims: tuple[int, ...] = (10, 100, 1000, 10_000, 100_000)
    many_vectors: int = NOTES_VECTORS
    many_dims: tuple[int, ...] = (10, 100, 1000)
    optimised_vectors: int = 400
    optimised_dims: tuple[int, ...] = (10, 30, 100, 300)
    steps: int = 200
    counted_dims: tuple[int, ...] = (20, 40, 60, 80, 100)
    trials: int = 15


def run(experiment: Experiment) -> Iterator[Point]:
    """Angles of random vectors, of optimised vectors, and the number of vectors before two come too close."""
    settings = experiment.settings
    for number, dims in ((settings.few_vectors, settings.few_dims), (settings.many_vectors, settings.many_dims)):
        for dim in dims:
            fraction, largest = describe_angles(random_directions(number, dim))
            yield Point(LARGEST, f"{number:,} random vectors", dim, largest)
            if number == settings.few_vectors:
                yield Point(FRACTION, PAIRS, dim, fraction)
    number = settings.optimised_vectors
    for dim in settings.optimised_dims:
        experiment.progress(f"{dim} dimensions", 0, 1)
        vectors = random_directions(number, dim)
        yield Point(OPTIMISED, RANDOM, dim, describe_angles(vectors)[1])
        yield Point(OPTIMISED, TRAINED, dim, describe_angles(spread_out(vectors, settings.steps))[1])
        yield Point(OPTIMISED, BOUND, dim, to_degrees(welch_bound(number, dim)))
    for tolerance in TOLERANCES:
        for dim in settings.counted_dims:
            counts = [count_until_too_close(dim, tolerance) for _ in range(settings.trials)]
            yield Point(COUNT, f"{tolerance}°", dim, median(counts))


def random_directions(number: int, dim: int) -> Tensor:
    """Unit vectors in random directions, (number, dim)."""
    return F.normalize(torch.randn(number, dim), dim=1)


def describe_angles(vectors: Tensor, block: int = 1000) -> tuple[float, float]:
    """The fraction of pairs within 1° of a right angle, and the largest deviation from it in degrees."""
    number, near, largest = len(vectors), 0, 0.0
    for start in range(0, number, block):
        cosines = (vectors[start : start + block] @ vectors[start:].T).abs()
        near += int((cosines < math.sin(math.radians(1))).triu(1).sum())
        largest = max(largest, cosines.triu(1).max().item())
    return near / (number * (number - 1) / 2), to_degrees(largest)


def to_degrees(cosine: float) -> float:
    """The deviation from a right angle."""
    return math.degrees(math.asin(min(cosine, 1.0)))


def welch_bound(number: int, dim: int) -> float:
    """Welch 1974: of any `number` vectors, some pair has a cosine of at least this size."""
    return math.sqrt(max(number - dim, 0) / (dim * (number - 1)))


def max_vectors(dim: int, tolerance: float) -> float:
    """The largest number of vectors that the Welch bound allows within a tolerance in degrees."""
    square = math.sin(math.radians(tolerance)) ** 2
    return dim * (1 - square) / (1 - dim * square) if dim * square < 1 else math.inf


def spread_out(vectors: Tensor, steps: int) -> Tensor:
    """Move unit vectors apart: gradient descent on the p-norm of all cosines, with p growing towards the maximum."""
    moved = vectors.clone().requires_grad_()
    optimizer = torch.optim.Adam([moved], lr=0.01)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.0, total_iters=steps)
    for step in range(steps):
        unit = F.normalize(moved, dim=1)
        cosines = (unit @ unit.T - torch.eye(len(unit))).abs()
        scale, p = cosines.max().detach(), 2 * 30 ** (step / steps)
        optimizer.zero_grad()
        ((cosines / scale).pow(p).sum().log() / p + scale.log()).backward()
        optimizer.step()
        schedule.step()
    return F.normalize(moved.detach(), dim=1)


def count_until_too_close(dim: int, tolerance: float, max_count: int = 16_384, block: int = 256) -> int:
    """The number of random vectors before one deviates from a right angle to an earlier one by more than allowed."""
    limit, vectors = math.sin(math.radians(tolerance)), torch.empty(0, dim)
    for start in range(0, max_count, block):
        new = random_directions(block, dim)
        vectors = torch.cat([vectors, new])
        too_close = ((new @ vectors.T).abs().tril(start - 1) > limit).any(dim=1)
        if too_close.any():
            return start + int(too_close.int().argmax())
    return max_count


def check(table: Table) -> list[Check]:
    """In 100 dimensions 10,000 vectors cannot all be within 89–91°; at a loose tolerance the number is exponential."""
    fraction = table.mean(FRACTION, PAIRS, NOTES_DIM)
    many = table.series(LARGEST)[-1]
    worst = table.mean(LARGEST, many, NOTES_DIM)
    falls = table.exponent(LARGEST, many, [float(x) for x in table.xs(LARGEST) if float(x) >= NOTES_DIM])
    needed = NOTES_DIM * worst**2  # the deviation falls as 1/√d, so 1° needs worst² times the dimensions
    random, trained, bound = (table.mean(OPTIMISED, name, NOTES_DIM) for name in (RANDOM, TRAINED, BOUND))
    floor = to_degrees(welch_bound(NOTES_VECTORS, NOTES_DIM))
    rates = {name: growth_rate(table.curve(COUNT, name)) for name in table.series(COUNT)}
    return [
        Check(
            f"{NOTES_VECTORS:,} vectors cannot all be within 89–91° in {NOTES_DIM} dimensions (Welch bound above 1°), "
            "and fewer than 20 % of random pairs are",
            floor > 1 and fraction < 0.2,
            f"bound {floor:.1f}°, at most {max_vectors(NOTES_DIM, 1):.0f} vectors fit; {fraction:.0%} of random pairs",
        ),
        Check(
            f"the worst deviation of {many} falls as 1/√d (exponent −0.6 to −0.4), so 1° needs far more dimensions",
            -0.6 < falls < -0.4,
            f"exponent {falls:.2f}; {worst:.0f}° in {NOTES_DIM} dimensions, 1° in about {round(needed, -3):,.0f}",
        ),
        Check(
            "optimisation at least halves the largest deviation; it stays above the Welch bound",
            bound <= trained < random / 2,
            f"{random:.0f}° → {trained:.1f}°, bound {bound:.1f}°, in {NOTES_DIM} dimensions",
        ),
        Check(
            f"at a tolerance of {LOOSE}° the number grows exponentially with the dimension (rate above 0.05)",
            rates[f"{LOOSE}°"] > 0.05 > rates[f"{TIGHT}°"],
            ", ".join(f"{name}: factor {math.exp(10 * rate):.2f} per 10 dimensions" for name, rate in rates.items()),
        ),
    ]


def growth_rate(curve: dict[float | str, float]) -> float:
    """The rate r of the exponential function c·e^(r·d) that fits a curve best, in logarithms."""
    return fit_exponent([math.exp(float(dim)) for dim in curve], list(curve.values()))


def example() -> None:
    """The idea in a few lines."""
    import torch

    for dim in (100, 1000, 10_000):
        vectors = torch.nn.functional.normalize(torch.randn(500, dim), dim=1)
        cosines = (vectors @ vectors.T)[~torch.eye(500, dtype=torch.bool)]
        deviations = cosines.asin().rad2deg().abs()  # from 90°
        near = (deviations < 1).float().mean()
        print(f"{dim} dimensions: {near:.0%} of pairs within 89–91°, the worst deviates by {deviations.max():.1f}°")


CLAIM = Claim(
    name="orthogonal",
    chapter="understanding",
    title="100 dimensions hold about 100 directions within 89–91°, not 10,000",
    quotes=(
        Quote("But if you allow directions to be nearly perpendicular (e.g., 89–91°)", "inside"),
        Quote(
            "The number of vectors you can cram into a space that are nearly perpendicular grows exponentially with "
            "the number of dimensions.",
            "inside",
        ),
        Quote(
            "In a 100-dimensional space, you can randomly generate 10,000 vectors that are all close to perpendicular.",
            "inside",
            "wrong if close means 89–91°",
        ),
    ),
    question="How close to perpendicular are random vectors, how far does optimisation get, and how many fit?",
    method="We measure the angles between all pairs of random unit vectors. Then gradient descent on a p-norm of the "
    "cosines moves 400 vectors apart; the Welch bound says what no set of vectors can beat. Last, we add random "
    "vectors until one deviates from 90° to an earlier one by more than a tolerance, and count them.",
    lesson="The cosine of two random vectors has a standard deviation of 1/√d, which is 5.7° in 100 dimensions. So "
    "most pairs are within 80–100°, but few are within 89–91°, and the worst of millions of pairs is far off. "
    "Optimisation helps, but not below the Welch bound: within 1°, 100 dimensions hold at most 103 vectors. The "
    "exponential growth is real. Its rate is about ε²/4 per dimension for a cosine of ε, so it needs a loose "
    "tolerance, or more than 1/ε² dimensions; for 1° this is 3,283. Superposition in models works because they "
    "tolerate more than 1°: features that are rarely active together rarely disturb each other.",
    limits="Random vectors give a lower bound on what fits, and the Welch bound an upper one; the best arrangement is "
    "in between. The number of dimensions for 10,000 vectors is extrapolated with 1/√d.",
    settings={
        "mini": OrthogonalSettings(50, (10, 100, 1000), 300, (10, 100, 1000), 150, (100,), 30, (20, 40, 60), trials=3),
        "small": OrthogonalSettings(),
        "full": OrthogonalSettings(
            many_dims=(10, 30, 100, 300, 1000, 3000, 10_000), optimised_vectors=2000, steps=500, trials=50
        ),
    },
    run=run,
    check=check,
    charts=(
        Chart(measure=FRACTION, x="dimensions", log_x=True, is_fraction=True),
        Chart(measure=LARGEST, x="dimensions", log_x=True, log_y=True),
        Chart(measure=OPTIMISED, x="dimensions", log_x=True, log_y=True, title=f"{OPTIMISED}, 400 vectors"),
        Chart(measure=COUNT, x="dimensions", log_y=True, title=f"{COUNT} (its deviation from 90°)"),
    ),
    example=example,
    is_deterministic=True,
)
