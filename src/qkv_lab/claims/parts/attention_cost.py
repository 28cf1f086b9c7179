"""Attention needs FLOPs in proportion to the square of the length; the linear maps of a block need more at first."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from qkv import Config, StackConfig
from qkv.blocks import Stack, make_layout
from qkv.models.tables.summary import summarise_model
from qkv_lab.claim import Chart, Check, Claim, Quote
from qkv_lab.experiment import Experiment
from qkv_lab.table import Point, Table

FLOPS = "FLOPs of a sequence"
SHARE = "share of attention in the FLOPs of a block"
LINEAR, ATTENTION, WINDOW, LSTM = (
    "linear maps",
    "attention: QKᵀ and weights × V",
    "attention with a window",
    "LSTM layer",
)
CROSSOVER = 6
"""At CROSSOVER · width tokens, the 4·C·T FLOPs of attention per token equal the 24·C² of the linear maps."""


@dataclass(frozen=True)
class AttentionCostSettings:
    """Lengths and widths whose FLOPs are counted. The first chart has the first width."""

    lengths: tuple[int, ...] = (96, 384, 1536, 6144, 24576)
    widths: tuple[int, ...] = (256, 64, 1024)
    window: int = 128


def run(experiment: Experiment) -> Iterator[Point]:
    """Count the FLOPs of a block and of an LSTM layer."""
    settings = experiment.settings
    width = settings.widths[0]
    for length in settings.lengths:
        linear, attention = count_block_flops(width, length)
        yield Point(FLOPS, LINEAR, length, linear)
        yield Point(FLOPS, ATTENTION, length, attention)
        yield Point(FLOPS, WINDOW, length, predict_block_flops(width, length, settings.window) - linear)
        yield Point(FLOPS, LSTM, length, length * count_lstm_step_flops(width))
    for width in sorted(settings.widths):
        for length in sorted({*settings.lengths, CROSSOVER * width}):
            linear, attention = count_block_flops(width, length)
            assert linear + attention == predict_block_flops(width, length)
            yield Point(SHARE, f"width {width}", length, attention / (linear + attention))


def block_config(width: int, window: int = 0) -> StackConfig:
    """One block with the proportions of the 2017 Transformer."""
    return StackConfig(
        vocab_size=1,
        width=width,
        layers=1,
        heads=max(width // 64, 1),
        ffn_width=4 * width,
        position="none",
        sliding_window=window,
    )


def count_block_flops(width: int, length: int) -> tuple[int, int]:
    """The FLOPs that torch counts in a forward pass of one block: linear maps, and products of activations."""
    with torch.device("meta"):  # only shapes are computed
        stack = Stack(block_config(width), name="encoder", causal=False)
        stack.kernel = "eager"
        with FlopCounterMode(display=False) as counter, torch.no_grad():
            stack(torch.empty(1, length, width), make_layout(torch.empty(1, length)))
    counts = counter.get_flop_counts()["Global"]
    attention = counts.pop(torch.ops.aten.bmm)
    return sum(counts.values()), attention


def predict_block_flops(width: int, length: int, window: int = 0) -> int:
    """The FLOPs of one block, as `qkv info` computes them. With a window, masked keys cost nothing."""
    return length * summarise_model(Config(decoder=block_config(width, window)), length).flops_forward


def count_lstm_step_flops(width: int) -> int:
    """The FLOPs that torch counts in one step of an LSTM."""
    with torch.device("meta"), FlopCounterMode(display=False) as counter, torch.no_grad():
        nn.LSTMCell(width, width)(torch.empty(1, width))
    return int(counter.get_total_flops())


def check(table: Table) -> list[Check]:
    """Attention grows with the square of the length, everything else in proportion to it."""
    powers = {name: table.exponent(FLOPS, name) for name in (ATTENTION, LINEAR, LSTM)}
    window = table.exponent(FLOPS, WINDOW, [float(x) for x in table.xs(FLOPS)[-2:]])
    widths = {series: int(series.removeprefix("width ")) for series in table.series(SHARE)}
    halves = [table.mean(SHARE, series, CROSSOVER * width) for series, width in widths.items()]
    return [
        Check(
            "the FLOPs of attention grow with the square of the length (exponent 2); the FLOPs of linear maps and of "
            "an LSTM grow linearly (exponent 1)",
            all(abs(powers[name] - power) < 0.01 for name, power in ((ATTENTION, 2), (LINEAR, 1), (LSTM, 1))),
            f"exponents: attention {powers[ATTENTION]:.2f}, linear maps {powers[LINEAR]:.2f}, LSTM {powers[LSTM]:.2f}",
        ),
        Check(
            f"at {CROSSOVER} · width tokens, attention needs half of the FLOPs of a block; for shorter sequences, less",
            all(abs(half - 0.5) < 0.001 for half in halves),
            f"share {min(halves):.3f}–{max(halves):.3f} at widths {', '.join(str(w) for w in widths.values())}",
        ),
        Check(
            "with a sliding window, attention is linear between the two longest lengths",
            abs(window - 1) < 0.01,
            f"exponent {window:.2f}",
        ),
    ]


def example() -> None:
    """The idea in a few lines."""
    from qkv import Config, StackConfig
    from qkv.models.tables.summary import summarise_model

    block = Config(decoder=StackConfig(vocab_size=1, width=512, layers=1, heads=8, ffn_width=2048))
    linear = 24 * 512**2  # 2 FLOPs for each of the 12·C² weights of a block
    for length in (512, 3072, 32768):
        flops = summarise_model(block, length).flops_forward  # per token
        print(f"{length:,} tokens: {flops:,} FLOPs per token, {1 - linear / flops:.0%} of them in attention")


CLAIM = Claim(
    name="attention-cost",
    chapter="parts",
    title="Attention is quadratic, but linear maps cost more until six times the width",
    quotes=(
        Quote("Computing all pairs of interactions means our computation grows quadratically", "lecture"),
        Quote("For recurrent models, it grew linearly", "lecture"),
        Quote(
            "Its linear time complexity is bad for very long sequences",
            "video",
            "wrong: attention is worse; the problem is the sequence of steps",
        ),
    ),
    question="How do the FLOPs of a block and of an LSTM layer grow with the length, and which part of a block "
    "dominates?",
    method="Torch counts the FLOPs of all matrix products in a forward pass of one block, whose feed-forward is four "
    "times as wide as the model, and of one step of an LSTM of the same width (256 in the first chart). For a "
    "window of 128 tokens, we count the FLOPs of a kernel that skips masked keys.",
    lesson="Per token, the linear maps of a block need 24·C² FLOPs and attention 4·C·T. So attention needs more only "
    "from T = 6·C on, or from 12·C on with a causal kernel that skips the future. For shorter texts, “quadratic” "
    "hardly matters. RNNs are linear in the length. For long texts this is an advantage, not a defect as the last "
    "quotation says. Their problem is that their steps must run one after another (see path-length).",
    limits="Softmax, norms and activations are not counted. FLOPs are not seconds: small matrix products and "
    "elementwise operations run at a lower rate.",
    settings={
        "mini": AttentionCostSettings((96, 1536, 24576), (256, 64)),
        "small": AttentionCostSettings(),
        "full": AttentionCostSettings((96, 384, 1536, 6144, 24576, 98304), (256, 64, 1024, 4096)),
    },
    run=run,
    check=check,
    charts=(
        Chart(measure=FLOPS, x="tokens", log_x=True, log_y=True),
        Chart(measure=SHARE, x="tokens", log_x=True, is_fraction=True),
    ),
    example=example,
    seeds={"mini": 1, "small": 1, "full": 1},
    is_deterministic=True,
)
