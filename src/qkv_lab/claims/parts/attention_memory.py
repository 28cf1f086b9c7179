"""The memory of attention is quadratic only if the pattern is stored. A fused kernel makes it linear."""

import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn

from qkv import StackConfig
from qkv.blocks import AttentionKernel, KernelHints, Stack, make_layout
from qkv_lab.claim import Chart, Check, Claim, Quote
from qkv_lab.experiment import Experiment
from qkv_lab.gradients import count_saved_bytes
from qkv_lab.table import Point, Table

MEMORY = "megabytes kept for the backward pass"
SECONDS = "seconds, forward and backward"
EAGER, FUSED, LSTM = "block, eager attention", "block, fused attention", "LSTM layer"


@dataclass(frozen=True)
class AttentionMemorySettings:
    """The layers that are run, and the lengths of their sequences."""

    width: int = 64
    heads: int = 4
    lengths: tuple[int, ...] = (1280, 1792, 2560, 3584)
    repeats: int = 5  # the fastest counts


def run(experiment: Experiment) -> Iterator[Point]:
    """Run a block with two kernels, and an LSTM layer."""
    settings = experiment.settings
    for length in settings.lengths:
        x = torch.randn(1, length, settings.width, requires_grad=True)
        layers = {
            EAGER: CausalBlock(settings, length, "eager"),
            FUSED: CausalBlock(settings, length, "sdpa"),
            LSTM: nn.LSTM(settings.width, settings.width, batch_first=True),
        }
        for name, layer in layers.items():
            yield Point(MEMORY, name, length, count_saved_bytes(layer, partial(sum_outputs, layer, x)) / 1e6)
            yield Point(SECONDS, name, length, min(time_run(layer, x) for _ in range(settings.repeats)))


class CausalBlock(nn.Module):
    """One causal block with a given kernel, on sequences of a given length."""

    def __init__(self, settings: AttentionMemorySettings, length: int, kernel: AttentionKernel) -> None:
        super().__init__()
        width = settings.width
        config = StackConfig(
            vocab_size=1, width=width, layers=1, heads=settings.heads, ffn_width=4 * width, position="none"
        )
        self.stack = Stack(config, name="decoder", causal=True)
        self.stack.kernel = kernel
        self.layout = make_layout(torch.empty(1, length))

    def forward(self, x: Tensor) -> tuple[Tensor]:
        """x (1, T, C) → (1, T, C), in a tuple, as an LSTM returns it."""
        return (self.stack(x, self.layout, hints=KernelHints(is_default=True)),)


def sum_outputs(layer: nn.Module, x: Tensor) -> Tensor:
    """A loss, so that there is something to differentiate."""
    out: Tensor = layer(x)[0]
    return out.sum()


def time_run(layer: nn.Module, x: Tensor) -> float:
    """The seconds of a forward and backward pass."""
    before = time.perf_counter()
    sum_outputs(layer, x).backward()
    return time.perf_counter() - before


def check(table: Table) -> list[Check]:
    """Memory is quadratic with the eager kernel only."""
    long = [float(x) for x in table.xs(MEMORY)[-2:]]
    powers = {name: table.exponent(MEMORY, name, long) for name in (EAGER, FUSED, LSTM)}
    memory, seconds = (
        {name: table.mean(measure, name, long[-1]) for name in (EAGER, FUSED, LSTM)} for measure in (MEMORY, SECONDS)
    )
    return [
        Check(
            "between the two longest lengths, the memory of eager attention grows almost quadratically (exponent above "
            "1.5), the memory of fused attention and of an LSTM linearly",
            powers[EAGER] > 1.5 and abs(powers[FUSED] - 1) < 0.05 and abs(powers[LSTM] - 1) < 0.05,
            f"exponents {powers[EAGER]:.2f}, {powers[FUSED]:.2f} and {powers[LSTM]:.2f}; {memory[EAGER]:.0f}, "
            f"{memory[FUSED]:.0f} and {memory[LSTM]:.0f} MB at {long[-1]:,.0f} tokens",
        ),
        Check(
            "the fused kernel is faster than the eager one",
            seconds[FUSED] < seconds[EAGER],
            f"{1000 * seconds[FUSED]:.0f} against {1000 * seconds[EAGER]:.0f} ms at {long[-1]:,.0f} tokens",
        ),
        Check(
            "on one CPU thread, an LSTM layer is faster than a block for long sequences",
            seconds[LSTM] < seconds[FUSED],
            f"{1000 * seconds[LSTM]:.0f} against {1000 * seconds[FUSED]:.0f} ms at {long[-1]:,.0f} tokens",
        ),
    ]


def example() -> None:
    """The idea in a few lines."""
    import torch
    from torch.nn.functional import scaled_dot_product_attention

    for length in (256, 512, 1024):
        q = k = v = torch.randn(1, 8, length, 64)
        pattern = (q @ k.mT / 64**0.5).softmax(dim=-1)  # eager attention keeps it for the backward pass
        out = scaled_dot_product_attention(q, k, v)  # a fused kernel keeps its inputs and its output
        assert torch.allclose(pattern @ v, out, atol=1e-5)
        print(f"{length} tokens: pattern {pattern.nbytes / 1e6:.1f} MB, output {out.nbytes / 1e6:.1f} MB")


CLAIM = Claim(
    name="attention-memory",
    chapter="parts",
    title="The memory of attention is quadratic only if the pattern is stored",
    quotes=(Quote("Quadratic compute in self-attention", "lecture"),),
    question="How do memory and time of training grow with the length?",
    method="We run one causal block with the eager kernel, which stores scores and pattern, and with torch's fused "
    "kernel, and an LSTM layer of the same width. We add up the tensors that autograd keeps for the backward pass, and "
    "take the fastest of several runs on one sequence. On a CPU, qkv computes shorter sequences with a third kernel, "
    "which also stores the pattern, because this is faster there. So all lengths are above its 1,024 tokens.",
    lesson="The FLOPs of attention are quadratic with every kernel, but its memory need not be. A fused kernel such as "
    "FlashAttention computes the pattern block by block, never stores it, and computes it a second time in the "
    "backward pass. It saves time, too, because it moves fewer bytes. An LSTM does less work for long sequences.",
    limits="Seconds are measured on one CPU thread. A GPU computes all tokens of a block at the same time, but the "
    "steps of an LSTM one after another, so the comparison of their times differs there.",
    settings={
        "mini": AttentionMemorySettings(lengths=(1280, 1792), repeats=1),
        "small": AttentionMemorySettings(),
        "full": AttentionMemorySettings(256, 4, (1280, 1792, 2560, 3584, 5120), repeats=10),
    },
    run=run,
    check=check,
    charts=(
        Chart(measure=MEMORY, x="tokens", log_x=True, log_y=True),
        Chart(measure=SECONDS, x="tokens", log_x=True, log_y=True),
    ),
    example=example,
    seeds={"mini": 1, "small": 1, "full": 1},
    timed=(SECONDS,),
    is_deterministic=True,
)
