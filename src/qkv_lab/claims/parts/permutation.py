"""Without positions, attention is permutation-equivariant: the outputs move with their tokens. It is not invariant."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from qkv import Config, StackConfig, build
from qkv.models import Network
from qkv_lab.claim import Chart, Check, Claim, Quote
from qkv_lab.experiment import Experiment
from qkv_lab.table import Point, Table

DIFFERENCE = "relative difference"
CHANGED = "outputs that change"
EQUIVARIANT, INVARIANT, POOLED = "f(Px) and P f(x)", "f(Px) and f(x)", "means of f(Px) and f(x)"
PLAIN, CAUSAL = "no positions", "causal mask, no positions"
POSITIONS = {"sinusoidal": "sinusoidal", "learned": "learned", "rotary": "rotary", "ALiBi": "alibi"}
ROUNDING = 1e-10
"""Differences below this are rounding: the networks compute in float64."""


@dataclass(frozen=True)
class PermutationSettings:
    """Random networks on random tokens: their size, and the number of tokens."""

    width: int = 64
    heads: int = 4
    layers: tuple[int, ...] = (1, 2, 4)
    num_tokens: int = 16
    swapped: int = 5  # this token and the next one trade places


def run(experiment: Experiment) -> Iterator[Point]:
    """Permute the tokens of random networks, and compare their outputs."""
    settings = experiment.settings
    ids = torch.randperm(settings.num_tokens)[None]  # no token occurs twice
    order = torch.randperm(settings.num_tokens)
    swap = torch.arange(settings.num_tokens)
    swap[settings.swapped : settings.swapped + 2] = swap[settings.swapped : settings.swapped + 2].flip(0)
    for name in (PLAIN, CAUSAL, *POSITIONS):
        for layers in settings.layers:
            network = build_random(settings, layers, POSITIONS.get(name, "none"), causal=name == CAUSAL)
            out, permuted, swapped = (hidden_states(network, ids[:, moved]) for moved in (swap.sort()[0], order, swap))
            changed = ((swapped - out[swap]).norm(dim=1) > ROUNDING * out[swap].norm(dim=1)).sum()
            yield Point(CHANGED, f"{layers} layer{'s' if layers > 1 else ''}", name, changed.item())
        yield Point(DIFFERENCE, EQUIVARIANT, name, relative_difference(permuted, out[order]))
        yield Point(DIFFERENCE, INVARIANT, name, relative_difference(permuted, out))
        yield Point(DIFFERENCE, POOLED, name, relative_difference(permuted.mean(0), out.mean(0)))


def build_random(settings: PermutationSettings, layers: int, position: str, *, causal: bool) -> Network:
    """A network whose weights are large enough for attention to differ between keys."""
    stack = StackConfig(
        vocab_size=settings.num_tokens,
        width=settings.width,
        layers=layers,
        heads=settings.heads,
        ffn_width=4 * settings.width,
        position=position,
        init_std=settings.width**-0.5,
    )
    config = Config(decoder=stack) if causal else Config(encoder=stack)
    return build(config, dtype=torch.float64)


@torch.no_grad()
def hidden_states(network: Network, ids: Tensor) -> Tensor:
    """The hidden states of one sequence, (T, C)."""
    return network.hidden(ids)[0][0]


def relative_difference(found: Tensor, expected: Tensor) -> float:
    """‖found − expected‖ / ‖expected‖, at least the precision of float64, so that it has a logarithm."""
    difference = (found - expected).norm() / expected.norm()
    return max(float(difference), torch.finfo(torch.float64).eps)


def check(table: Table) -> list[Check]:
    """Only a network without positions and without a causal mask is equivariant."""
    equivariant = table.curve(DIFFERENCE, EQUIVARIANT)
    moved = table.mean(DIFFERENCE, INVARIANT, PLAIN)
    pooled = table.curve(DIFFERENCE, POOLED)
    broken = {name: value for name, value in equivariant.items() if name != PLAIN}
    least = min(broken, key=lambda name: broken[name])
    one, two = (table.mean(CHANGED, depth, CAUSAL) for depth in ("1 layer", "2 layers"))
    return [
        Check(
            f"without positions, permuting the input permutes the output (difference below {ROUNDING:g})",
            equivariant[PLAIN] < ROUNDING,
            f"{equivariant[PLAIN]:.0e}",
        ),
        Check(
            "this is not invariance: the output itself changes (difference above 0.1); the mean over tokens does not",
            moved > 0.1 and pooled[PLAIN] < ROUNDING,
            f"{moved:.2f}; mean over tokens {pooled[PLAIN]:.0e}",
        ),
        Check(
            "positions and the causal mask break equivariance (difference above 0.01)",
            min(broken.values()) > 0.01,
            f"smallest difference {broken[least]:.2f} ({least})",
        ),
        Check(
            "with a causal mask, a swap of neighbours changes two outputs in one layer, and later ones in two layers",
            one == 2 < two,
            f"{one:.0f} outputs, then {two:.0f}",
        ),
    ]


def example() -> None:
    """The idea in a few lines."""
    import torch
    from torch.nn.functional import scaled_dot_product_attention as attention

    order = torch.tensor([3, 0, 5, 1, 4, 2])
    x, positions = torch.randn(2, 6, 8)
    out, permuted = attention(x, x, x), attention(x[order], x[order], x[order])
    print("equivariant without positions:", torch.allclose(permuted, out[order], atol=1e-6))
    print("invariant without positions:", torch.allclose(permuted, out, atol=1e-6))
    x, moved = x + positions, x[order] + positions
    print(
        "equivariant with positions:",
        torch.allclose(attention(moved, moved, moved), attention(x, x, x)[order], atol=1e-6),
    )


CLAIM = Claim(
    name="permutation",
    chapter="parts",
    title="Attention without positions is permutation-equivariant, not invariant",
    quotes=(
        Quote("Self Attention has 3 cool properties … permutation invariance", "video", "wrong: it is equivariance"),
        Quote("Since self-attention doesn’t build in order information, we need to encode the order", "lecture"),
    ),
    question="What happens to the output of a Transformer if its input tokens are permuted?",
    method="f is a network with random weights, x a sequence of tokens without repetition, and P a random permutation. "
    "We compare f(Px) with P f(x) (equivariance), f(Px) with f(x) (invariance), and their means over tokens. Then two "
    "neighbouring tokens trade places, and we count the tokens whose output changes.",
    lesson="Without positions, each token sees the other tokens as a set. Its output does not depend on their order, "
    "so the outputs move with their tokens: equivariance. Invariance would mean that the output stays the same; only a "
    "pooled output, such as the mean, does. A causal mask breaks equivariance, because the set that a token sees then "
    "depends on its place. In one layer only the outputs of the swapped tokens change; the next layers pass the change "
    "on. This is how decoders without position encodings can learn the order.",
    limits="The weights are random. The size of the differences depends on them; whether a difference exists does not.",
    settings={
        "mini": PermutationSettings(width=16, layers=(1, 2), num_tokens=8, swapped=3),
        "small": PermutationSettings(),
        "full": PermutationSettings(width=256, layers=(1, 2, 4, 8), num_tokens=64, swapped=20),
    },
    run=run,
    check=check,
    charts=(
        Chart(measure=DIFFERENCE, x="network", log_y=True),
        Chart(measure=CHANGED, x="network", title="outputs that change when two neighbours trade places"),
    ),
    example=example,
    is_deterministic=True,
)
