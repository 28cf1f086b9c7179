"""Attention layers with fixed patterns are one linear layer. But patterns depend on the input."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from qkv import StackConfig, Tap
from qkv.blocks import Stack, initialise, make_layout
from qkv.blocks.block import Block
from qkv.blocks.tap import LayerTap
from qkv_lab.claim import Chart, Check, Claim, Quote
from qkv_lab.experiment import Experiment
from qkv_lab.table import Point, Table

ERROR = "difference from a single layer"
TERMS = "pairs of a pattern and a value matrix"
FIXED, DYNAMIC = "patterns held fixed", "patterns computed from the input"
EPS = torch.finfo(torch.float64).eps


@dataclass(frozen=True)
class LinearAttentionStackSettings:
    """Random stacks in float64."""

    width: int = 16
    num_tokens: int = 12
    layers: tuple[int, ...] = (1, 2, 3)
    heads: tuple[int, ...] = (1, 2, 4)


def run(experiment: Experiment) -> Iterator[Point]:
    """Compare stacks of attention layers with single layers."""
    settings = experiment.settings
    for layers in settings.layers:
        stack = random_stack(settings.width, 1, layers)
        x, changed = torch.randn(2, 1, settings.num_tokens, settings.width, dtype=torch.float64)
        _, patterns = run_attention(stack, x)
        single = product_pattern(patterns) @ changed @ product_values(stack)
        for name, fixed in ((FIXED, patterns), (DYNAMIC, None)):
            out, _ = run_attention(stack, changed, fixed)
            yield Point(ERROR, name, layers, max(((out - single).norm() / single.norm()).item(), EPS))
        for heads in settings.heads:
            yield Point(TERMS, f"{heads} head{'s' if heads > 1 else ''}", layers, count_terms(settings, heads, layers))


def random_stack(width: int, heads: int, layers: int) -> Stack:
    """A bidirectional stack with random weights and without biases."""
    config = StackConfig(
        vocab_size=1,
        width=width,
        layers=layers,
        heads=heads,
        ffn_width=4 * width,
        bias="none",
        position="none",
        init="xavier",
    )
    stack = Stack(config, name="encoder", causal=False).to(torch.float64)
    initialise(stack, config)
    return stack.eval().requires_grad_(False)


def blocks_of(stack: Stack) -> list[Block]:
    """The blocks of a stack."""
    return [block for block in stack.blocks if isinstance(block, Block)]


def run_attention(stack: Stack, x: Tensor, fixed: Sequence[Tensor] | None = None) -> tuple[Tensor, list[Tensor]]:
    """The attention layers of a stack alone: the output (B, T, C), and the patterns. `fixed` replaces the patterns."""
    layout, patterns = make_layout(x), []
    mask = stack.prepare_masks(x, layout, layout)[0]
    for layer, block in enumerate(blocks_of(stack)):
        change = {} if fixed is None else {"encoder.*.pattern": lambda _, pattern=fixed[layer]: pattern}
        tap = Tap(record=["encoder.*.pattern"], change=change)
        x = block.attention(x, mask, tap=LayerTap(tap, f"encoder.{layer}"))
        patterns.append(tap[f"encoder.{layer}.pattern"])
    return x, patterns


def product_pattern(patterns: Sequence[Tensor]) -> Tensor:
    """A_L ⋯ A_2 A_1 of layers with one head, (T, T)."""
    product = patterns[0][0, 0]
    for pattern in patterns[1:]:
        product = pattern[0, 0] @ product
    return product


def product_values(stack: Stack) -> Tensor:
    """V_1 O_1 V_2 O_2 ⋯ of layers with one head, (C, C), for vectors that are multiplied from the left."""
    product = torch.eye(stack.config.width, dtype=torch.float64)
    for block in blocks_of(stack):
        values = block.attention.qkv.weight.split(block.attention.split_sizes)[2]
        product = product @ values.T @ block.attention.out.weight.T
    return product


def count_terms(settings: LinearAttentionStackSettings, heads: int, layers: int) -> int:
    """The number of terms (pattern ⊗ value matrix) whose sum is the linear map of a stack with fixed patterns."""
    tokens, width = settings.num_tokens, settings.width
    stack = random_stack(width, heads, layers)
    _, patterns = run_attention(stack, 3 * torch.randn(1, tokens, width, dtype=torch.float64))
    basis = torch.eye(tokens * width, dtype=torch.float64).view(-1, tokens, width)
    out = run_attention(stack, basis, patterns)[0].view(tokens, width, tokens, width)  # input token and channel first
    matrix = out.permute(2, 0, 3, 1).reshape(tokens * tokens, width * width)  # pairs of tokens × pairs of channels
    return int(torch.linalg.matrix_rank(matrix, rtol=1e-12))


def check(table: Table) -> list[Check]:
    """A stack with fixed patterns is one layer; real patterns are not fixed."""
    layers = int(table.xs(ERROR)[-1])
    fixed, dynamic = (table.curve(ERROR, name).values() for name in (FIXED, DYNAMIC))
    terms = {int(name.split()[0]): table.mean(TERMS, name, layers) for name in table.series(TERMS)}
    return [
        Check(
            "with fixed patterns and one head, a stack equals one layer with the product of the patterns and of the "
            "value matrices (difference below 10⁻¹²)",
            max(fixed) < 1e-12,
            f"difference {max(fixed):.0e}",
        ),
        Check(
            "patterns that are computed from the input break this (difference above 0.1)",
            min(dynamic) > 0.1,
            f"difference {min(dynamic):.2f} or more",
        ),
        Check(
            "with H heads, L layers with fixed patterns are a sum of Hᴸ pairs of a pattern and a value matrix",
            all(found == heads**layers for heads, found in terms.items()),
            f"{', '.join(f'{found:.0f}' for found in terms.values())} pairs for {layers} layers of "
            f"{', '.join(str(heads) for heads in terms)} heads",
        ),
    ]


def example() -> None:
    """The idea in a few lines."""
    import torch

    x = torch.randn(6, 8)
    patterns = torch.randn(2, 6, 6).softmax(dim=-1)  # held fixed
    values = torch.randn(2, 8, 8)
    two_layers = patterns[1] @ (patterns[0] @ x @ values[0]) @ values[1]
    one_layer = (patterns[1] @ patterns[0]) @ x @ (values[0] @ values[1])
    print("equal:", torch.allclose(two_layers, one_layer, atol=1e-4))
    print("the product is a pattern, its rows sum to", (patterns[1] @ patterns[0]).sum(dim=-1))


CLAIM = Claim(
    name="linear-attention-stack",
    chapter="parts",
    title="Stacked attention with fixed patterns is one linear layer",
    quotes=(
        Quote(
            "stacking more self-attention layers just re-averages value vectors.", "lecture", "if patterns are fixed"
        ),
        Quote(
            "So, this is just a linear combination of a linear transformation of the input, much like a single layer "
            "of self-attention!",
            "lecture",
        ),
    ),
    question="Is a stack of attention layers, without MLPs, no more than a single layer?",
    method="We record the patterns of random attention layers on one input, hold them fixed, run the layers on another "
    "input, and compare with the single layer of the notes' formula. For several heads we count how many terms, each a "
    "pattern times a value matrix, the linear map has (the rank of the rearranged matrix).",
    lesson="Values pass through attention linearly: the product Σⱼ A⁽²⁾ᵢⱼ A⁽¹⁾ⱼₖ is again a pattern, and the value "
    "matrices multiply. With several heads, each path through the layers has its own pattern and value matrix. But the "
    "second pattern is computed from the output of the first layer, with a softmax. So a stack is not linear in its "
    "input, and can compute what no single layer can, such as induction. What attention lacks is a non-linear function "
    "of each vector. The MLP adds it.",
    limits="The weights are random, and there are no skip connections or norms. With skip connections, paths that "
    "leave out a layer are further terms.",
    settings={
        "mini": LinearAttentionStackSettings(layers=(1, 2), heads=(1, 2)),
        "small": LinearAttentionStackSettings(),
        "full": LinearAttentionStackSettings(width=32, num_tokens=20, layers=(1, 2, 3, 4)),
    },
    run=run,
    check=check,
    charts=(
        Chart(measure=ERROR, x="layers", log_y=True),
        Chart(measure=TERMS, x="layers", log_y=True),
    ),
    example=example,
    is_deterministic=True,
)
