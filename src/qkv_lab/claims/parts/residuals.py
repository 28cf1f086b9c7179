"""Skip connections carry gradient and token identity through a deep stack; without them it does not learn."""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch

from qkv import Tap
from qkv_lab.claim import Chart, Check, Claim, Quote
from qkv_lab.decoders import build_decoder, decoder_keys
from qkv_lab.experiment import Experiment
from qkv_lab.markov import NUM_STATES, write_markov_chain
from qkv_lab.table import Point, Table, fit_exponent

GRADIENT = "log₁₀ of the gradient at the first layer"
DIFFERENCE = "log₁₀ of the difference between tokens"
LOSS = "validation loss (nats per token)"
BOTH, NO_NORM, NO_SKIP, NEITHER = "skip connections and norms", "no norms", "no skip connections", "neither"
VARIANTS = {
    BOTH: {},
    NO_NORM: {"norm": "none"},
    NO_SKIP: {"residual": "none"},
    NEITHER: {"norm": "none", "residual": "none"},
}
MAX_LOSS = 10.0
"""A larger loss means that the training diverged; its value has no meaning."""


@dataclass(frozen=True)
class ResidualsSettings:
    """Random networks at several depths, and short training runs."""

    depths: tuple[int, ...] = (2, 4, 8, 16, 32, 64)
    width: int = 64
    num_tokens: int = 30
    trained_depths: tuple[int, ...] = (2, 4, 8, 16)
    trained_width: int = 32
    num_walks: int = 2000
    steps: int = 60
    batch_tokens: int = 512


def run(experiment: Experiment) -> Iterator[Point]:
    """Pass a gradient through random stacks with and without skip connections and norms; then train some of them."""
    settings = experiment.settings
    for name, change in VARIANTS.items():
        for depth in settings.depths:
            gradient, difference = pass_through(depth, settings.width, settings.num_tokens, change)
            yield Point(GRADIENT, name, depth, gradient)
            yield Point(DIFFERENCE, name, depth, difference)
    data = write_markov_chain(experiment, settings.num_walks, settings.num_tokens)
    training = {"train.steps": settings.steps, "train.batch_tokens": settings.batch_tokens, "train.lr": 3e-3}
    for name, change in VARIANTS.items():
        for depth in settings.trained_depths:
            model = decoder_keys(depth, settings.trained_width, change)
            keys = {**data, **training, "train.on_nonfinite": "skip", **model}
            loss = experiment.train(f"{name}, {depth} layers", keys).run_end.metrics["loss"]
            yield Point(LOSS, name, depth, loss if loss < MAX_LOSS else MAX_LOSS)


def pass_through(layers: int, width: int, num_tokens: int, change: dict[str, str]) -> tuple[float, float]:
    """Two measurements of a random stack, in powers of ten.

    The first is the norm of the gradient at the first layer, for a random gradient of norm 1 after the last layer. The
    second is the distance of the last layer's vectors from their mean over tokens, relative to their norm.
    """
    network = build_decoder(layers, width, NUM_STATES, **change)
    tap = Tap(record=["decoder.0.resid_pre", f"decoder.{layers - 1}.resid_post"])
    network(torch.randint(NUM_STATES, (4, num_tokens)), tap=tap)
    first, last = tap.values.values()
    direction = torch.randn_like(last)
    (gradient,) = torch.autograd.grad(last, first, direction / direction.norm())
    difference = (last - last.mean(dim=1, keepdim=True)).norm() / last.norm()
    limits, eps = torch.finfo(torch.float32), torch.finfo(torch.float64).eps
    return gradient.norm().clamp(limits.tiny, limits.max).log10().item(), difference.clamp(min=eps).log10().item()


def check(table: Table) -> list[Check]:
    """Skip connections keep the gradient; without them tokens become alike, and a deep stack does not learn."""
    depths, deep_trained = [float(x) for x in table.xs(GRADIENT)], table.xs(LOSS)[-1]
    deep = table.xs(GRADIENT)[-1]
    gradient = {name: table.mean(GRADIENT, name, deep) for name in VARIANTS}
    exponent = fit_exponent(depths, [10**value for value in table.curve(GRADIENT, BOTH).values()])
    difference = {name: table.mean(DIFFERENCE, name, deep) for name in (BOTH, NO_SKIP)}
    worse, interval = table.difference(LOSS, (NO_SKIP, deep_trained), (BOTH, deep_trained))
    return [
        Check(
            "with skip connections and norms, the gradient does not shrink with depth and grows at most like √depth "
            f"(exponent 0–0.6); without both, less than 10⁻⁵ of the gradient is left after {deep} layers",
            0 <= exponent < 0.6 and gradient[NEITHER] < -5,
            f"exponent {exponent:.2f} with both; 10^{gradient[NEITHER]:.0f} is left without both",
        ),
        Check(
            f"after {deep_trained} layers, a model without skip connections has learned less (by 0.5 nats or more)",
            worse - interval > 0.5,
            f"{table.mean(LOSS, NO_SKIP, deep_trained):.2f} against {table.mean(LOSS, BOTH, deep_trained):.2f} nats",
            needs_all_seeds=True,
        ),
        Check(
            "norms alone keep the norm of the gradient (within a factor of 10), but not the difference between tokens "
            "(less than a hundredth of it)",
            abs(gradient[NO_SKIP]) < 1 and difference[NO_SKIP] < difference[BOTH] - 2,
            f"gradient 10^{gradient[NO_SKIP]:.1f}, difference 10^{difference[NO_SKIP]:.0f} "
            f"against 10^{difference[BOTH]:.1f}",
        ),
        Check(
            f"skip connections alone let the gradient explode (10³ or more after {deep} layers)",
            gradient[NO_NORM] > 3,
            f"10^{gradient[NO_NORM]:.1f}",
        ),
    ]


def example() -> None:
    """The idea in a few lines."""
    import torch

    layers = [torch.nn.Linear(32, 32) for _ in range(64)]
    for has_skip in (True, False):
        first = x = torch.randn(1, 32, requires_grad=True)
        for layer in layers:
            update = torch.tanh(layer(x))
            x = x + update if has_skip else update
        (gradient,) = torch.autograd.grad(x.norm(), first)
        print(f"skip connections: {has_skip}; gradient at the first layer: {gradient.norm():.1e}")


CLAIM = Claim(
    name="residuals",
    chapter="parts",
    title="Skip connections carry the gradient through a deep stack",
    quotes=(
        Quote("Gradient is great through the residual connection; its 1!", "lecture", "nearly"),
        Quote(
            "The Transformer employs residual connections to facilitate training and prevent vanishing gradients.",
            "review",
        ),
        Quote(
            "Each layer's output is added to it's input (through skip connections) (prevents vanishing gradient)",
            "mechanism",
        ),
    ),
    question="How much gradient reaches the first layer of a deep stack, with and without skip connections and norms?",
    method="The stacks have random weights (Xavier) and pre-norm blocks. We pass a random gradient of norm 1 from "
    "the last layer to the first and measure its norm there, in float64, limited to the range of float32. We also "
    "measure how far the output vectors of a sequence are from their mean. Then we train decoders for a few steps "
    f"on a Markov chain, whose best loss is {math.log(2):.2f}. A loss above {MAX_LOSS:g} counts as {MAX_LOSS:g}.",
    lesson="A block with a skip connection computes x + f(x). Its Jacobian is I + ∂f/∂x, so the gradient always has "
    "the direct path I. It is not exactly 1: the paths through f add to it, so the gradient grows slowly with depth. "
    "Without norms, f grows with x. A shallow stack learns nevertheless; in a deep one, vectors and gradients explode. "
    "Without skip connections, only products of ∂f/∂x are left. Norms can keep such a product at a normal size, so "
    "the gradient need not vanish. But each attention layer averages over tokens, and without skip connections "
    "nothing preserves a token's own vector: all tokens become the same vector (rank collapse; Dong, Cordonnier and "
    "Loukas, 2021). The model can then only predict the same distribution everywhere.",
    limits="The exact sizes depend on the initialisation. With GPT-2's small initial weights, a stack with skip "
    "connections passes the gradient nearly unchanged even without norms. Stacks without skip connections can be "
    "trained with special initialisations or attention that favours the token itself (He et al., 2023).",
    settings={
        "mini": ResidualsSettings((2, 8, 16), 32, trained_depths=(2,), num_walks=100, steps=2),
        "small": ResidualsSettings(),
        "full": ResidualsSettings(
            width=128, trained_depths=(2, 4, 8, 16, 32), trained_width=64, num_walks=8000, steps=250
        ),
    },
    run=run,
    check=check,
    charts=(
        Chart(measure=GRADIENT, x="layers", log_x=True),
        Chart(measure=DIFFERENCE, x="layers", log_x=True),
        Chart(measure=LOSS, x="layers", log_x=True),
    ),
    example=example,
)
