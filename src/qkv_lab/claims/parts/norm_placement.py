"""At initialisation, post-norm has large gradients in its last layers at any depth; pre-norm scales them with depth."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch

from qkv_lab.claim import Chart, Check, Claim, Quote
from qkv_lab.decoders import build_decoder
from qkv_lab.experiment import Experiment
from qkv_lab.scoring import next_token_loss
from qkv_lab.table import Point, Table

LAST = "gradient of the last feed-forward (norm)"
BY_LAYER = "gradient of each feed-forward (norm)"
PLACEMENTS = {"pre-norm": "pre", "post-norm": "post", "sandwich": "sandwich"}
VOCAB_SIZE = 100


@dataclass(frozen=True)
class NormPlacementSettings:
    """Random decoders on random tokens."""

    depths: tuple[int, ...] = (2, 4, 8, 16, 32, 64)
    width: int = 64
    num_sequences: int = 4
    num_tokens: int = 32


def run(experiment: Experiment) -> Iterator[Point]:
    """The gradients of the down-projections of random decoders, by depth and by layer."""
    settings = experiment.settings
    for name, placement in PLACEMENTS.items():
        for depth in settings.depths:
            gradients = layer_gradients(settings, depth, placement)
            yield Point(LAST, name, depth, gradients[-1])
        for layer, gradient in enumerate(gradients, start=1):  # of the deepest decoder
            yield Point(BY_LAYER, name, layer, gradient)


def layer_gradients(settings: NormPlacementSettings, layers: int, placement: str) -> list[float]:
    """The norm of the gradient of each layer's down-projection, for the loss of a language model."""
    network = build_decoder(layers, settings.width, VOCAB_SIZE, norm_placement=placement)
    ids = torch.randint(VOCAB_SIZE, (settings.num_sequences, settings.num_tokens + 1))
    next_token_loss(network, ids).backward()
    return [block.ffn.down.weight.grad.norm().item() for block in network.output_stack.blocks]  # type: ignore[union-attr, operator]


def check(table: Table) -> list[Check]:
    """Xiong et al., 2020: the last gradient falls as 1/√depth with pre-norm, and does not fall with post-norm."""
    exponents = {name: table.exponent(LAST, name) for name in PLACEMENTS}
    deep = int(table.xs(LAST)[-1])
    ratio = table.mean(LAST, "post-norm", deep) / table.mean(LAST, "pre-norm", deep)
    growth = {name: table.mean(BY_LAYER, name, deep) / table.mean(BY_LAYER, name, 1) for name in PLACEMENTS}
    return [
        Check(
            "the gradient of the last layer falls as 1/√depth with pre-norm (exponent −0.6 to −0.3), and does not "
            "fall with post-norm (exponent above −0.15)",
            -0.6 <= exponents["pre-norm"] <= -0.3 and exponents["post-norm"] > -0.15,
            f"exponents {exponents['pre-norm']:.2f} and {exponents['post-norm']:.2f}",
        ),
        Check(
            f"at {deep} layers, the last layer of post-norm has at least twice the gradient of pre-norm's",
            ratio >= 2,
            f"{ratio:.1f} times",
        ),
        Check(
            "a sandwich behaves as pre-norm (exponent −0.6 to −0.3)",
            -0.6 <= exponents["sandwich"] <= -0.3,
            f"exponent {exponents['sandwich']:.2f}",
        ),
        Check(
            f"inside a post-norm decoder of {deep} layers, gradients grow towards the output (by a factor of 1.5)",
            growth["post-norm"] >= 1.5,
            f"last layer/first layer {growth['post-norm']:.2f}; with pre-norm {growth['pre-norm']:.2f}",
        ),
    ]


def example() -> None:
    """The idea in a few lines."""
    import torch

    from qkv_lab.decoders import build_decoder

    for placement in ("pre", "post", "sandwich"):
        norms = []
        for layers in (2, 32):
            network = build_decoder(layers, width=32, vocab_size=50, norm_placement=placement)
            ids = torch.randint(50, (4, 33))
            logits = network(ids[:, :-1])
            torch.nn.functional.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten()).backward()
            norms.append(network.output_stack.blocks[-1].ffn.down.weight.grad.norm())  # type: ignore[union-attr, operator]
        print(f"{placement}: last layer's gradient {norms[0]:.2f} at 2 layers, {norms[1]:.2f} at 32")


CLAIM = Claim(
    name="norm-placement",
    chapter="parts",
    title="Pre-norm scales gradients with depth, post-norm does not",
    quotes=(
        Quote("Causes gradient instability", "mechanism", "of post-norm"),
        Quote("Does not distort residual connection", "mechanism", "of pre-norm"),
        Quote("Hybrid: Both pre and post do exist (called Sandwich Normalization)", "mechanism"),
    ),
    question="How large is the gradient of each layer at initialisation, with norms before, after or around it?",
    method="Decoders have random weights (Xavier) and predict random tokens. We measure the norm of the gradient of "
    "the second matrix of each feed-forward: in the last layer by depth, and in all layers of the deepest decoder.",
    lesson="With pre-norm, every layer adds to the residual stream, so the norm of the stream grows as √depth. The "
    "final norm divides by it, in the forward and in the backward pass. The deeper the model, the smaller are the "
    "gradients. Post-norm normalises the stream after each layer, so nothing scales the gradients with depth; they "
    "also differ much more between seeds. A sandwich normalises the output of each layer but not the stream, and "
    "behaves as pre-norm.",
    limits="This is the state before the first step; the claim `warm-up` trains. Xiong et al. (2020) derive the result "
    "for uniform attention, and also find that post-norm's gradients shrink from the output to the input. In these "
    "small decoders they do not: the outputs of the layers are small beside the stream, and the gradient that passes "
    "through the layers makes up for the division by the norms.",
    settings={
        "mini": NormPlacementSettings((2, 8, 16), 32),
        "small": NormPlacementSettings(),
        "full": NormPlacementSettings(width=256, num_sequences=8, num_tokens=64),
    },
    run=run,
    check=check,
    charts=(
        Chart(measure=LAST, x="layers of the decoder", log_x=True, log_y=True),
        Chart(measure=BY_LAYER, x="layer", log_y=True),
    ),
    example=example,
    seeds={"mini": 1, "small": 10, "full": 10},
    is_deterministic=True,
)
