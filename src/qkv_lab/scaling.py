"""Scaling laws: fit the loss of training runs as a function of parameters and tokens, and predict larger runs.

L(N, D) = E + A/N^α + B/D^β      (Hoffmann et al., 2022; N parameters, D tokens, E the irreducible loss)
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

EXPONENTS = tuple(0.03 * i for i in range(1, 41))
"""The exponents that a fit tries. Given both exponents, A, B and E are a linear problem."""
TERMS = ([0, 1, 2], [0, 1], [0, 2], [1, 2], [2])
"""The terms of A, B and E that a fit tries. If one comes out negative, it is better left out."""


class ScaledRun(NamedTuple):
    """A training run: its number of parameters without embeddings, its training tokens and its loss."""

    parameters: float
    tokens: float
    loss: float

    @property
    def flops(self) -> float:
        """The compute of training, 6·N·D: a multiply-add per weight and token, forward and twice backward."""
        return 6 * self.parameters * self.tokens


@dataclass(frozen=True)
class ScalingLaw:
    """The law L(N, D) = E + A/N^α + B/D^β."""

    irreducible: float  # E
    a: float
    alpha: float
    b: float
    beta: float

    def predict(self, parameters: float, tokens: float) -> float:
        """The loss of a run.

        >>> round(ScalingLaw(1.0, 8.0, 0.5, 27.0, 1 / 3).predict(64, 27_000), 6)
        2.9
        """
        loss: float = self.irreducible + self.a / parameters**self.alpha + self.b / tokens**self.beta
        return loss


def fit_scaling_law(runs: Sequence[ScaledRun]) -> ScalingLaw:
    """The law with the least squared error among those in which A, B and E are not negative."""
    parameters, tokens, losses = (np.array(column, dtype=float) for column in zip(*runs, strict=True))
    # Ratios to the smallest run keep the columns of the linear problem at one scale.
    first_n, first_d = float(parameters.min()), float(tokens.min())
    best, least = ScalingLaw(0.0, 0.0, 0.0, 0.0, 0.0), np.inf
    for alpha in EXPONENTS:
        for beta in EXPONENTS:
            terms = np.stack(
                [(first_n / parameters) ** alpha, (first_d / tokens) ** beta, np.ones_like(losses)], axis=1
            )
            for kept in TERMS:
                found = np.zeros(3)
                found[kept] = np.linalg.lstsq(terms[:, kept], losses, rcond=None)[0]
                error = float(((terms @ found - losses) ** 2).sum())
                if (found >= 0).all() and error < least:
                    a, b, irreducible = (float(value) for value in found)
                    best = ScalingLaw(irreducible, a * first_n**alpha, alpha, b * first_d**beta, beta)
                    least = error
    return best


def compute_frontier(runs: Sequence[ScaledRun]) -> list[ScaledRun]:
    """The runs that no run with at most the same compute beats, from the cheapest on.

    >>> runs = [ScaledRun(10, 10, 3.0), ScaledRun(10, 30, 2.5), ScaledRun(20, 10, 2.8), ScaledRun(40, 10, 2.7)]
    >>> [run.loss for run in compute_frontier(runs)]
    [3.0, 2.8, 2.5]
    """
    frontier: list[ScaledRun] = []
    for run in sorted(runs, key=lambda run: (run.flops, run.loss)):
        if not frontier or run.loss < frontier[-1].loss:
            frontier.append(run)
    return frontier
