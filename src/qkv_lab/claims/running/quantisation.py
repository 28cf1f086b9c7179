"""Weights in int8 lose almost nothing, and in int4 little, if small groups of weights share a scale."""

from collections.abc import Iterator
from copy import deepcopy
from dataclasses import dataclass
from typing import get_args

import torch
from torch import Tensor, nn

from qkv import QkvError
from qkv.decode import WeightPrecision, quantize
from qkv.decode.cpu.packed_linear import QuantizedLinear
from qkv.models import Network
from qkv_lab.claim import Chart, Check, Claim
from qkv_lab.corpus import BYTE_MODEL, read_passages, write_corpus
from qkv_lab.experiment import Experiment
from qkv_lab.scoring import next_token_loss
from qkv_lab.table import Point, Table

SIZE = "size of the matrices (bits for each weight)"
LOSS = "loss on held-out text (nats per byte)"
RISE = "rise of the loss by rounding (nats per byte)"
TENSOR, ROW, GROUP = "one scale for a matrix", "one scale for a row", "one scale for 32 weights"
GROUP_SIZE = 32


@dataclass(frozen=True)
class QuantisationSettings:
    """A language model of the standard library's sources, and the numbers of bits to which its weights are rounded."""

    steps: int = 500
    width: int = 64
    train_bytes: int = 1_000_000
    num_passages: int = 100
    bits: tuple[int, ...] = (2, 3, 4, 5, 6, 8)


@torch.no_grad()
def run(experiment: Experiment) -> Iterator[Point]:
    """Train a model; the size and the loss of its int8 and int4 copies; the loss with weights rounded to n bits."""
    settings = experiment.settings
    keys = {
        **BYTE_MODEL,
        **write_corpus(experiment, settings.train_bytes, 50_000),
        "model.width": settings.width,
        "data.max_length": 128,
        "train.steps": settings.steps,
        "train.batch_tokens": 2048,
    }
    with torch.enable_grad():
        trained = experiment.train("language model", keys)
    network = trained.network.eval()
    ids = torch.tensor(read_passages(keys["data.valid"], trained.tokenizer, settings.num_passages, 128))
    loss = next_token_loss(network, ids).item()
    yield Point(SIZE, "matrices", "float32", matrix_bits(network))
    yield Point(LOSS, "loss", "float32", loss)
    for precision in get_args(WeightPrecision):
        try:
            small = quantize(network, precision)
        except QkvError:  # torch has no kernels for this precision on this machine
            continue
        yield Point(SIZE, "matrices", precision, matrix_bits(small))
        yield Point(LOSS, "loss", precision, next_token_loss(small, ids).item())
    for bits in settings.bits:
        for name in (TENSOR, ROW, GROUP):
            yield Point(RISE, name, bits, next_token_loss(round_network(network, bits, name), ids).item() - loss)


def matrix_bits(network: Network) -> float:
    """The bits that each weight of the matrices of the stack takes, with its part of the scales."""
    blocks = network.output_stack.blocks
    size = sum(tensor.numel() * tensor.element_size() for tensor in (*blocks.parameters(), *blocks.buffers()))
    size += sum(module.packed_bytes for module in blocks.modules() if isinstance(module, QuantizedLinear))
    weights = sum(getattr(module, "in_features", 0) * getattr(module, "out_features", 0) for module in blocks.modules())
    return 8 * size / weights


def round_network(network: Network, bits: int, scales: str) -> Network:
    """A copy of a network whose matrices are rounded to n bits."""
    rounded = deepcopy(network)
    for module in rounded.output_stack.modules():
        if isinstance(module, nn.Linear):
            module.weight.copy_(round_weights(module.weight, bits, scales))
    return rounded


def round_weights(weight: Tensor, bits: int, scales: str) -> Tensor:
    """Round weights (O, I) to 2ⁿ − 1 equally spaced values between −m and m, m the largest of those with a scale."""
    groups = {TENSOR: weight.view(1, -1), ROW: weight, GROUP: weight.reshape(-1, GROUP_SIZE)}[scales]
    largest = 2 ** (bits - 1) - 1
    scale = groups.abs().amax(dim=1, keepdim=True).clamp(min=1e-12) / largest
    rounded: Tensor = (groups / scale).round() * scale
    return rounded.view_as(weight)


def check(table: Table) -> list[Check]:
    """int8 is free, int4 nearly; at few bits, small groups lose less."""
    sizes, losses = table.curve(SIZE, "matrices"), table.curve(LOSS, "loss")
    rises = {name: table.mean(RISE, name, 4) for name in (TENSOR, ROW, GROUP)}
    wide = table.mean(RISE, GROUP, 8)
    checks = [
        Check(
            "int8 takes at most 30 % of the bits of float32, and raises the loss by at most 0.2 %",
            sizes["int8"] <= 0.3 * sizes["float32"] and losses["int8"] <= 1.002 * losses["float32"],
            f"{sizes['int8']:.1f} of {sizes['float32']:.1f} bits; {losses['int8'] / losses['float32'] - 1:+.2%}",
        ),
    ]
    if "int4" in sizes:
        checks.append(
            Check(
                "int4 takes at most 18 % of the bits, and raises the loss by at most 3 %",
                sizes["int4"] <= 0.18 * sizes["float32"] and losses["int4"] <= 1.03 * losses["float32"],
                f"{sizes['int4']:.1f} bits; {losses['int4'] / losses['float32'] - 1:+.2%}",
            )
        )
    return [
        *checks,
        Check(
            "at 4 bits, more scales lose less: the rise of the loss falls from a matrix to a row to 32 weights",
            rises[TENSOR] > rises[ROW] > rises[GROUP] > wide,
            f"{', '.join(f'{rise:.3f}' for rise in rises.values())} nats; {wide:.4f} at 8 bits",
        ),
    ]


def example() -> None:
    """The idea in a few lines."""
    import qkv

    translator = qkv.load("en-fr")
    sources = ["The cat chased the mouse.", "We missed the last train, so we had to take a taxi."]
    targets = [
        "Le chat a poursuivi la souris.",
        "Nous avons raté le dernier train, donc nous avons dû prendre un taxi.",
    ]
    for name, model in (("float32", translator), ("int8", translator.quantize("int8"))):
        tokens = [token.logprob for scores in model.score(sources, targets) for token in scores]
        print(f"{name}: loss {-sum(tokens) / len(tokens):.4f} nats per token, {model.translate(sources[0])}")


CLAIM = Claim(
    name="quantisation",
    chapter="running",
    title="Weights in int8 lose almost nothing, in int4 little",
    quotes=(),
    question="How much smaller do matrices become in int8 and int4, and what does it cost in loss?",
    method="A language model of bytes is trained on the sources of Python's standard library. Its matrices are then "
    "replaced by qkv's int8 and int4 ones. To see what matters, we also round them to n bits in three ways: with one "
    "scale for a matrix, for each row, or for each group of 32 weights.",
    lesson="A weight is stored as an integer times a scale. The largest weight that shares the scale sets the step "
    "between two values, so one large weight makes the rounding of all others coarse. With 8 bits the steps are so "
    "small that even one scale for a matrix costs little. With 4 bits there are 15 values, and one scale for a whole "
    "matrix is too coarse. More scales cost bits, too: 32 for a group of 32 weights make an int4 weight take 5 bits.",
    limits="The model is small and its weights have few outliers; in large models outliers are more common, above all "
    "in activations. Only matrices are quantised, after training and without data. Time is not measured here: decoding "
    "reads all weights for each token, so fewer bytes save time as well.",
    settings={
        "mini": QuantisationSettings(5, 32, train_bytes=10_000, num_passages=4, bits=(4, 8)),
        "small": QuantisationSettings(),
        "full": QuantisationSettings(5000, 192, train_bytes=10_000_000, num_passages=300),
    },
    run=run,
    check=check,
    charts=(
        Chart(measure=SIZE, x="precision of the matrices"),
        Chart(measure=LOSS, x="precision of the matrices"),
        Chart(measure=RISE, x="bits", log_y=True),
    ),
    example=example,
)
