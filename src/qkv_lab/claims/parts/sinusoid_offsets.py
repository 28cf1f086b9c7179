"""Sinusoidal positions: a fixed matrix moves every position by an offset, so that offsets can be read linearly."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from qkv.blocks.position import sinusoids
from qkv_lab.claim import Chart, Check, Claim, Quote
from qkv_lab.experiment import Experiment
from qkv_lab.table import Point, Table

ERROR = "relative error of PE(p + k) = M PE(p)"
SPREAD = "spread of PE(p) · PE(p + k) over p, relative to ‖PE‖²"
SINUSOIDAL, RANDOM = "sinusoidal", "random table"


@dataclass(frozen=True)
class SinusoidOffsetsSettings:
    """The width, the number of positions, and the offsets."""

    width: int = 64
    positions: int = 4000
    offsets: tuple[int, ...] = (1, 4, 16, 64, 256)


def run(experiment: Experiment) -> Iterator[Point]:
    """Move all positions of a table by each offset with one matrix."""
    settings = experiment.settings
    length = settings.positions + max(settings.offsets)
    sines = sinusoids(torch.arange(length)[None], settings.width)[0]
    random = torch.randn(length, settings.width, dtype=torch.float64)
    for offset in settings.offsets:
        for name, table in ((SINUSOIDAL, sines), (RANDOM, random)):
            here, moved = table[: settings.positions], table[offset : settings.positions + offset]
            matrix = rotations(sines[offset]) if name == SINUSOIDAL else torch.linalg.lstsq(here, moved).solution
            error = (here @ matrix - moved).norm() / moved.norm()
            yield Point(ERROR, name, offset, max(float(error), torch.finfo(torch.float64).eps))
            products = (here * moved).sum(dim=1)
            yield Point(SPREAD, name, offset, max(float(products.std() / table.square().sum(1).mean()), 1e-16))


def rotations(encoding: Tensor) -> Tensor:
    """The matrix that moves sinusoids by k, from PE(k): for each pair (sin kω, cos kω), a rotation by kω."""
    sine, cosine = encoding[0::2], encoding[1::2]
    blocks = torch.stack([torch.stack([cosine, -sine], dim=1), torch.stack([sine, cosine], dim=1)], dim=1)
    matrix: Tensor = torch.block_diag(*blocks)
    return matrix


def check(table: Table) -> list[Check]:
    """One matrix for each offset fits all positions of sinusoids, and no matrix those of a random table."""
    errors = {name: table.curve(ERROR, name).values() for name in (SINUSOIDAL, RANDOM)}
    spreads = {name: table.curve(SPREAD, name).values() for name in (SINUSOIDAL, RANDOM)}
    return [
        Check(
            "for each offset, one matrix moves the sinusoids of all positions by it (error below 1e-10); for a random "
            "table, the best matrix does not (above 0.5)",
            max(errors[SINUSOIDAL]) < 1e-10 and min(errors[RANDOM]) > 0.5,
            f"errors at most {max(errors[SINUSOIDAL]):.0e}, and at least {min(errors[RANDOM]):.2f}",
        ),
        Check(
            "the product of two sinusoids depends only on their distance (spread below 1e-12); in a random table it "
            "does not (above 0.05)",
            max(spreads[SINUSOIDAL]) < 1e-12 and min(spreads[RANDOM]) > 0.05,
            f"spread at most {max(spreads[SINUSOIDAL]):.0e}, and at least {min(spreads[RANDOM]):.2f}",
        ),
    ]


def example() -> None:
    """The idea in a few lines."""
    import torch

    from qkv.blocks.position import sinusoids

    table = sinusoids(torch.arange(100)[None], 32)[0]
    for offset in (1, 5, 20):
        products = (table[:-offset] * table[offset:]).sum(dim=1)
        print(f"offset {offset}: PE(p) · PE(p + {offset}) is {products.min():.6f} to {products.max():.6f} for all p")


CLAIM = Claim(
    name="sinusoid-offsets",
    chapter="parts",
    title="A fixed matrix moves sinusoidal positions by an offset",
    quotes=(
        Quote(
            "it would allow the model to easily learn to attend by relative positions, since for any fixed offset k, "
            "PE_{pos+k} can be represented as a linear function of PE_{pos}.",
            "paper",
        ),
    ),
    question="Can a linear map read relative positions from sinusoids?",
    method="For each offset k, one matrix M, which rotates each pair of a sine and a cosine, is applied to the "
    "encodings of 4,000 positions. The comparison is a table of random vectors, which is how a learned table starts, "
    "with the best matrix by least squares. Then we compare the products PE(p) · PE(p + k) for all p.",
    lesson="Each pair of a sine and a cosine turns by a fixed angle when the position grows by k. So M consists of "
    "rotations, whatever p is, and attention can look k tokens back with one matrix for all positions. The product of "
    "two encodings depends only on their distance, not on its sign: the matrix of the queries or keys has to tell "
    "before from after.",
    limits="This shows that relative positions can be read, not that a trained model reads them, nor that it "
    "generalises to longer sequences (see positions).",
    settings={
        "mini": SinusoidOffsetsSettings(16, 400, (1, 8)),
        "small": SinusoidOffsetsSettings(),
        "full": SinusoidOffsetsSettings(128, 20_000, (1, 4, 16, 64, 256, 1024)),
    },
    run=run,
    check=check,
    charts=(
        Chart(measure=ERROR, x="offset k", log_x=True, log_y=True),
        Chart(measure=SPREAD, x="offset k", log_x=True, log_y=True),
    ),
    example=example,
    is_deterministic=True,
)
