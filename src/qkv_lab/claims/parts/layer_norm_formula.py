"""Layer normalisation divides by the standard deviation, not by its root: only then has the output a fixed scale."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from qkv import Tap
from qkv.models import Network
from qkv_lab.claim import Chart, Check, Claim, Quote
from qkv_lab.decoders import build_decoder
from qkv_lab.experiment import Experiment
from qkv_lab.scoring import next_token_loss
from qkv_lab.table import Point, Table

OUTPUT = "standard deviation of the output"
MEAN = "mean of the output"
STREAM = "standard deviation of the residual stream"
LOSS = "loss before training (nats per token)"
RIGHT, WRONG = "÷ √(σ² + ε)", "÷ (√σ + ε)"
VOCAB_SIZE = 100


@dataclass(frozen=True)
class LayerNormFormulaSettings:
    """Vectors of several scales, and a deep pre-norm decoder with random weights."""

    scales: tuple[float, ...] = (0.01, 0.1, 1.0, 10.0, 100.0)
    width: int = 64
    num_vectors: int = 1000
    layers: tuple[int, ...] = (1, 2, 4, 8, 16, 32, 64)  # the last one is the depth of the decoder


class RootStdNorm(nn.Module):
    """The formula of the notes: (x − μ) / (√σ + ε), where σ is the standard deviation."""

    def forward(self, x: Tensor) -> Tensor:
        """Normalise the last dimension."""
        std, mean = torch.std_mean(x, dim=-1, keepdim=True, correction=0)
        return (x - mean) / (std.sqrt() + 1e-5)


def run(experiment: Experiment) -> Iterator[Point]:
    """The scale of normalised vectors, and of the residual stream of a decoder with each of the formulas."""
    settings = experiment.settings
    for name, norm in ((RIGHT, nn.LayerNorm(settings.width)), (WRONG, RootStdNorm())):
        for scale in settings.scales:
            out = norm(3 + scale * torch.randn(settings.num_vectors, settings.width)).detach()
            yield Point(OUTPUT, name, scale, out.std(dim=1, correction=0).mean().item())
            yield Point(MEAN, name, scale, out.mean().item())
    for name in (RIGHT, WRONG):
        torch.manual_seed(experiment.seed)  # the same weights and tokens for both
        network = build_decoder(settings.layers[-1], settings.width, VOCAB_SIZE)
        if name == WRONG:
            replace_norms(network)
        tap = Tap(record=["decoder.*.resid_post"])
        ids = torch.randint(VOCAB_SIZE, (4, 33))
        with torch.no_grad():
            loss = next_token_loss(network, ids, tap)
        for layer in settings.layers:
            yield Point(STREAM, name, layer, tap[f"decoder.{layer - 1}.resid_post"].std(dim=2).mean().item())
        yield Point(LOSS, name, settings.layers[-1], loss.item())


def replace_norms(network: Network) -> None:
    """Replace every layer norm of a decoder by the formula of the notes."""
    for module in list(network.modules()):
        for name, child in module.named_children():
            if isinstance(child, nn.LayerNorm):
                setattr(module, name, RootStdNorm())


def check(table: Table) -> list[Check]:
    """The right formula gives every vector a standard deviation of 1; the wrong one gives √σ."""
    right, wrong = (table.exponent(OUTPUT, name) for name in (RIGHT, WRONG))
    largest_mean = max(abs(value) for value in table.curve(MEAN, RIGHT).values())
    layers = [float(x) for x in table.xs(STREAM)]
    growth = {name: table.exponent(STREAM, name, layers[len(layers) // 2 :]) for name in (RIGHT, WRONG)}
    depth = table.xs(LOSS)[0]
    losses = [table.mean(LOSS, name, depth) for name in (RIGHT, WRONG)]
    return [
        Check(
            "the output's standard deviation does not depend on the input's σ with √(σ² + ε) (exponent below 0.02), "
            "and is √σ with √σ + ε (exponent 0.48–0.52)",
            abs(right) < 0.02 and 0.48 < wrong < 0.52,
            f"exponents {right:.2f} and {wrong:.2f}",
        ),
        Check(
            "layer normalisation gives a mean of 0, not 1 (below 10⁻³)",
            largest_mean < 1e-3,
            f"{largest_mean:.0e} at most",
        ),
        Check(
            "with √σ + ε, the residual stream grows in proportion to depth (exponent 0.8–1.1) instead of √depth "
            "(0.3–0.6)",
            0.8 < growth[WRONG] < 1.1 and 0.3 < growth[RIGHT] < 0.6,
            f"exponents {growth[WRONG]:.2f} and {growth[RIGHT]:.2f} in the upper layers",
        ),
        Check(
            f"at {depth:g} layers, the loss before training is at least 1 nat higher",
            losses[1] > losses[0] + 1,
            f"{losses[1]:.1f} against {losses[0]:.1f} nats",
        ),
    ]


def example() -> None:
    """The idea in a few lines."""
    import torch

    for scale in (0.01, 1.0, 100.0):
        x = scale * torch.randn(1000, 64)
        sigma, mu = torch.std_mean(x, dim=1, keepdim=True, correction=0)
        right = (x - mu) / (sigma**2 + 1e-5).sqrt()
        wrong = (x - mu) / (sigma.sqrt() + 1e-5)
        print(f"input {scale:g}: √(σ² + ε) gives {right.std():.2f}, √σ + ε gives {wrong.std():.2f}")


CLAIM = Claim(
    name="layer-norm-formula",
    chapter="parts",
    title="Layer normalisation divides by √(σ² + ε), not by √σ + ε",
    quotes=(
        Quote(
            r"$\text{output} = \frac{x-\mu}{\sqrt{\sigma} + \epsilon} * \gamma \space + \beta$",
            "lecture",
            "wrong: σ is the standard deviation here, and has no root",
        ),
        Quote("normalizing to unit mean and standard deviation", "lecture", "wrong: the mean becomes zero"),
    ),
    question="What happens to the scale of activations if a norm divides by the root of the standard deviation?",
    method="We normalise random vectors of mean 3 and several standard deviations σ with both formulas. Then we "
    "replace the norms of a pre-norm decoder with random weights, and measure its residual stream and its loss.",
    lesson="A norm makes the output of a layer independent of the scale of its input. Division by σ does that. "
    "Division by √σ leaves a factor √σ: vectors that are 100 times larger stay 10 times larger. In a pre-norm stack, "
    "a larger stream then makes each layer add more to it, so the stream grows in proportion to depth instead of "
    "√depth. The final norm does not remove this scale: the logits are too large, and the loss starts far above that "
    "of a uniform guess. The formula would be right if σ stood for the variance. Whether ε is added under the root or "
    "after it hardly matters; torch adds it under the root.",
    limits="Random weights, before training. A trained gain γ can undo one wrong scale, but not one that differs from "
    "token to token.",
    settings={
        "mini": LayerNormFormulaSettings(num_vectors=100, layers=(1, 2, 4, 8, 16)),
        "small": LayerNormFormulaSettings(),
        "full": LayerNormFormulaSettings(width=256),
    },
    run=run,
    check=check,
    charts=(
        Chart(measure=OUTPUT, x="standard deviation of the input", log_x=True, log_y=True, integer_x=False),
        Chart(measure=STREAM, x="layer", log_x=True, log_y=True),
    ),
    example=example,
    is_deterministic=True,
)
