"""Attention averages. Without skip connections, all tokens of a deep stack become equal."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from qkv import StackConfig
from qkv.blocks import Stack, initialise, make_layout
from qkv.blocks.block import Block
from qkv_lab.claim import Chart, Check, Claim, Quote
from qkv_lab.experiment import Experiment
from qkv_lab.table import Point, Table

DISTANCE = "distance from equal tokens (relative to the norm)"
ONLY, CAUSAL, WITH_MLP = "attention only", "causal attention only", "attention and MLP"
WITH_SKIP, WHOLE = "attention and skip connections", "whole block"
EPS = torch.finfo(torch.float64).eps


class Parts(NamedTuple):
    """The parts of a stack."""

    has_mlp: bool
    has_skip: bool
    causal: bool = False


VARIANTS = {
    ONLY: Parts(False, False),
    CAUSAL: Parts(False, False, causal=True),
    WITH_MLP: Parts(True, False),
    WITH_SKIP: Parts(False, True),
    WHOLE: Parts(True, True),
}


@dataclass(frozen=True)
class RankCollapseSettings:
    """Random pre-norm stacks in float64."""

    width: int = 64
    heads: int = 4
    num_tokens: int = 32
    layers: int = 16


def run(experiment: Experiment) -> Iterator[Point]:
    """The distance of the vectors from their mean over tokens, after each layer of stacks with some of their parts."""
    settings = experiment.settings
    for name, parts in VARIANTS.items():
        stack = random_stack(settings, causal=parts.causal)
        x = torch.randn(1, settings.num_tokens, settings.width, dtype=torch.float64)
        for layer, out in enumerate(run_parts(stack, x, parts), start=1):
            distance = (out - out.mean(dim=1, keepdim=True)).norm() / out.norm()
            yield Point(DISTANCE, name, layer, max(distance.item(), EPS))


def random_stack(settings: RankCollapseSettings, *, causal: bool) -> Stack:
    """A pre-norm stack with random weights."""
    config = StackConfig(
        vocab_size=1,
        width=settings.width,
        layers=settings.layers,
        heads=settings.heads,
        ffn_width=4 * settings.width,
        position="none",
        init="xavier",
    )
    stack = Stack(config, name="decoder" if causal else "encoder", causal=causal).to(torch.float64)
    initialise(stack, config)
    return stack.eval().requires_grad_(False)


def run_parts(stack: Stack, x: Tensor, parts: Parts) -> Iterator[Tensor]:
    """The output of each layer, with the chosen parts. All variants have the norms."""
    layout = make_layout(x)
    mask = stack.prepare_masks(x, layout, layout)[0]
    for block in stack.blocks:
        assert isinstance(block, Block)
        update = block.attention(block.attention_sub.norm(x), mask)
        x = x + update if parts.has_skip else update
        if parts.has_mlp:
            update = block.ffn(block.ffn_sub.norm(x))
            x = x + update if parts.has_skip else update
        yield x


def check(table: Table) -> list[Check]:
    """Without skip connections tokens become equal, with or without an MLP; with skip connections they do not."""
    xs = [int(x) for x in table.xs(DISTANCE)]
    layers, half = xs[-1], xs[len(xs) // 2 - 1]
    left = {name: table.mean(DISTANCE, name, layers) for name in VARIANTS}
    early = {name: table.mean(DISTANCE, name, 4) for name in VARIANTS}
    factor = (left[CAUSAL] / table.mean(DISTANCE, CAUSAL, half)) ** (1 / (layers - half))  # per layer
    return [
        Check(
            f"without skip connections, tokens become equal within {layers} layers (distance below 10⁻⁶)",
            left[ONLY] < 1e-6,
            f"{early[ONLY]:.0e} after 4 layers, {left[ONLY]:.0e} after {layers}",
        ),
        Check(
            "an MLP does not prevent it (distance below 10⁻⁶)",
            left[WITH_MLP] < 1e-6,
            f"{left[WITH_MLP]:.0e} after {layers} layers",
        ),
        Check(
            "with a causal mask the distance only halves in each layer (factor 0.4–0.7)",
            0.4 < factor < 0.7,
            f"factor {factor:.2f}; {left[CAUSAL]:.0e} after {layers} layers",
        ),
        Check(
            "skip connections prevent it (distance above 0.1)",
            min(left[WITH_SKIP], left[WHOLE]) > 0.1,
            f"{left[WITH_SKIP]:.2f}, with an MLP {left[WHOLE]:.2f}",
        ),
    ]


def example() -> None:
    """The idea in a few lines."""
    import torch
    from torch.nn.functional import scaled_dot_product_attention as attention

    for has_skip in (False, True):
        x = torch.randn(16, 32, dtype=torch.float64)
        for _ in range(8):
            update = attention(x, x, x) @ torch.randn(32, 32, dtype=torch.float64) / 32**0.5
            x = torch.nn.functional.layer_norm(x + update if has_skip else update, (32,))
        spread = (x - x.mean(dim=0)).norm() / x.norm()
        print(f"skip connections: {has_skip}, distance from equal tokens {spread:.0e}")


CLAIM = Claim(
    name="rank-collapse",
    chapter="parts",
    title="Without skip connections, attention makes all tokens equal",
    quotes=(
        Quote("stacking more self-attention layers just re-averages value vectors.", "lecture"),
        Quote("Bias towards the identity function!", "lecture"),
    ),
    question="What happens to the differences between tokens in a deep stack of attention layers?",
    method="Random vectors pass through random pre-norm stacks from which we remove the MLPs, the skip connections, or "
    "both. After each layer we measure how far the vectors are from their mean over tokens, relative to their norm. At "
    "0 all tokens are equal: the matrix of the vectors has rank 1.",
    lesson="Each output of attention is an average of values. Averages of averages are more alike in each layer, and "
    "keys that are more alike give a more uniform pattern, so the distance falls doubly exponentially (Dong et al. "
    "2021). A norm or an MLP acts on each token separately: it maps equal vectors to equal vectors. A causal mask "
    "slows the collapse: the first tokens average over few others, and the averaging matrix of a uniform causal "
    "pattern has the eigenvalues 1, 1/2, 1/3, …, so about half of the distance is left in each layer. A skip "
    "connection adds each token's own vector, which differs from the others.",
    limits="The weights are random. Training can make patterns sharp, which slows the collapse. Distances near 10⁻¹⁶ "
    "are rounding errors of float64.",
    settings={
        "mini": RankCollapseSettings(layers=8),
        "small": RankCollapseSettings(),
        "full": RankCollapseSettings(512, 8, 128, layers=48),
    },
    run=run,
    check=check,
    charts=(Chart(measure=DISTANCE, x="layers", log_y=True),),
    example=example,
    is_deterministic=True,
)
