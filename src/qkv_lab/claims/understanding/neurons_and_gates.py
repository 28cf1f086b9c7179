"""A ReLU neuron is an AND gate only with a negative bias; a gated unit needs no bias."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from qkv_lab.claim import Chart, Check, Claim, Quote
from qkv_lab.experiment import Experiment
from qkv_lab.table import Point, Table

FIRING = "inputs for which ReLU(a + b + bias) fires"
SHARE = "random neurons that compute a function"
INPUTS = torch.tensor([[0.0, 0.0], [1.0, 0.0], [0.0, 1.0], [1.0, 1.0]])  # the features a and b
BIASED, UNBIASED, GATED = "ReLU with a bias", "ReLU without a bias", "ReGLU without a bias"
AND, OR, ONE, XOR, OTHER = "a AND b", "a OR b", "a or b alone", "a XOR b", "other or none"
FUNCTIONS: dict[tuple[bool, ...], str] = {
    (False, False, False, True): AND,
    (False, True, True, True): OR,
    (False, True, False, True): ONE,
    (False, False, True, True): ONE,
    (False, True, True, False): XOR,
}
"""The inputs for which a neuron fires, in the order of `INPUTS`, and the name of the function."""


@dataclass(frozen=True)
class NeuronsAndGatesSettings:
    """The biases of the first measurement, and the number of random neurons of the second."""

    biases: tuple[float, ...] = (-2.25, -1.75, -1.25, -0.75, -0.25, 0.25)
    num_neurons: int = 100_000


def run(experiment: Experiment) -> Iterator[Point]:
    """Count the inputs for which a neuron fires, and the functions that random neurons compute."""
    settings = experiment.settings
    for bias in settings.biases:
        fires = (INPUTS.sum(1) + bias).relu() > 0
        yield Point(FIRING, "two features", bias, int(fires.sum()))
    for name, make_outputs in NEURONS.items():
        counts = dict.fromkeys((AND, OR, ONE, XOR, OTHER), 0)
        for pattern, count in count_patterns(make_outputs(settings.num_neurons)).items():
            counts[FUNCTIONS.get(pattern, OTHER)] += count
        for function, count in counts.items():
            yield Point(SHARE, name, function, count / settings.num_neurons)


def relu_outputs(num_neurons: int, bias: float = 1.0) -> Tensor:
    """ReLU(w·x + c) with standard normal w and c, for each input: (inputs, neurons)."""
    return (INPUTS @ torch.randn(2, num_neurons) + bias * torch.randn(num_neurons)).relu()


def gated_outputs(num_neurons: int) -> Tensor:
    """ReLU(u·x) (v·x) with standard normal u and v: (inputs, neurons)."""
    return (INPUTS @ torch.randn(2, num_neurons)).relu() * (INPUTS @ torch.randn(2, num_neurons))


NEURONS: dict[str, Callable[[int], Tensor]] = {
    BIASED: relu_outputs,
    UNBIASED: lambda num_neurons: relu_outputs(num_neurons, bias=0.0),
    GATED: gated_outputs,
}


def count_patterns(outputs: Tensor) -> dict[tuple[bool, ...], int]:
    """How many neurons fire for which inputs. A neuron fires if its output exceeds half of its largest output."""
    largest = outputs.max(dim=0).values
    fires = (outputs > largest / 2) & (largest > 0)
    patterns, counts = fires.T.unique(dim=0, return_counts=True)
    return {tuple(pattern): count for pattern, count in zip(patterns.tolist(), counts.tolist(), strict=True)}


def check(table: Table) -> list[Check]:
    """AND needs −2 < bias ≤ −1; without a bias it does not occur; a gated unit computes it without a bias."""
    firing = {float(bias): count for bias, count in table.curve(FIRING, "two features").items()}
    gates = [bias for bias, count in firing.items() if count == 1]
    either = [bias for bias, count in firing.items() if count == 3]
    shares = {name: table.mean(SHARE, name, AND) for name in NEURONS}
    exclusive = max(table.mean(SHARE, name, XOR) for name in NEURONS)
    return [
        Check(
            "ReLU(a + b + bias) fires for both features only if −2 < bias ≤ −1; with −1 < bias ≤ 0 it is an OR",
            all((-2 < bias <= -1) == (bias in gates) and (-1 < bias <= 0) == (bias in either) for bias in firing),
            f"AND at {', '.join(f'{bias:g}' for bias in gates)}; OR at {', '.join(f'{bias:g}' for bias in either)}",
        ),
        Check(
            "no ReLU neuron without a bias is an AND gate, and some with a random bias are",
            shares[UNBIASED] == 0 and shares[BIASED] > 0,
            f"{shares[UNBIASED]:.1%} and {shares[BIASED]:.1%}",
        ),
        Check(
            "a gated unit can be an AND gate without a bias, more often than a ReLU with one",
            shares[GATED] > shares[BIASED],
            f"{shares[GATED]:.1%}",
        ),
        Check("no single neuron of these kinds computes XOR", exclusive == 0, f"{exclusive:.0%}"),
    ]


def example() -> None:
    """The idea in a few lines."""
    import torch

    michael, jordan = torch.tensor([0.0, 1.0, 0.0, 1.0]), torch.tensor([0.0, 0.0, 1.0, 1.0])
    print("bias 0:     ", (michael + jordan).relu().tolist())  # fires for either name: OR
    print("bias −1:    ", (michael + jordan - 1).relu().tolist())  # fires for both names only: AND
    print("gated unit: ", (michael.relu() * jordan).tolist())  # AND without a bias


CLAIM = Claim(
    name="neurons-and-gates",
    chapter="understanding",
    title="A neuron is an AND gate if its bias is negative",
    quotes=(
        Quote("Acts like an AND gate, only triggering when certain combinations of features are present.", "inside"),
        Quote("One neuron could activate only when the embedding encodes both “Michael” and “Jordan”.", "inside"),
    ),
    question="When does a ReLU neuron respond to two features only if both are present?",
    method="Two features a and b are 0 or 1. We count the inputs for which ReLU(a + b + bias) is positive. Then we "
    "draw the weights of many neurons at random and count which function of the two features each computes: it fires "
    "for an input if its output is more than half of its largest output.",
    lesson="The ReLU itself is no AND gate: it only cuts off what is below zero. The bias sets the threshold. With a "
    "bias of 0 or above, one feature alone is enough. With a bias between −2 and −1, it takes both. Many models, such "
    "as Llama and T5, have no biases. There, a direction of the embedding that is always present can serve as one, or "
    "the gate does it: a gated unit (GLU) multiplies two projections, and a product is an AND. XOR takes two neurons.",
    limits="This counts what single neurons can compute, not what trained ones do. In a trained model many features "
    "share a neuron (see superposition).",
    settings={
        "mini": NeuronsAndGatesSettings(num_neurons=10_000),
        "small": NeuronsAndGatesSettings(),
        "full": NeuronsAndGatesSettings(num_neurons=1_000_000),
    },
    run=run,
    check=check,
    charts=(
        Chart(measure=FIRING, x="bias", integer_x=False),
        Chart(measure=SHARE, x="function"),
    ),
    example=example,
    is_deterministic=True,
)
