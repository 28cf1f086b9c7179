"""Attention connects all tokens in one layer, without sequential steps. Recurrence needs a step for each token."""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from qkv import StackConfig, Tap
from qkv.blocks import Stack, make_layout
from qkv_lab.claim import Chart, Check, Claim, Quote
from qkv_lab.experiment import Experiment
from qkv_lab.table import Point, Table

CHAIN = "operations that must run one after another"
DISTANCE = "layers or steps from the first token to the last"
ATTENTION, WINDOW, LSTM = "attention", "attention with a window", "LSTM"


@dataclass(frozen=True)
class PathLengthSettings:
    """Lengths, the window of attention, and the width of the layers."""

    lengths: tuple[int, ...] = (8, 16, 32, 64, 128)
    window: int = 8
    width: int = 16


def run(experiment: Experiment) -> Iterator[Point]:
    """Count operations in the autograd graph, and layers until the gradient of the first token arrives."""
    settings = experiment.settings
    for length in settings.lengths:
        x = torch.randn(1, length, settings.width, dtype=torch.float64, requires_grad=True)
        states = run_lstm(x)
        yield Point(CHAIN, ATTENTION, length, longest_chain(run_stack(x, num_layers=1)[-1]))
        yield Point(CHAIN, LSTM, length, longest_chain(states[-1]))
        num_layers = math.ceil((length - 1) / settings.window) + 1
        windowed = run_stack(x, num_layers=num_layers, window=settings.window)
        yield Point(DISTANCE, ATTENTION, length, first_dependent(run_stack(x, num_layers=1), x))
        yield Point(DISTANCE, WINDOW, length, first_dependent(windowed, x))
        yield Point(DISTANCE, LSTM, length, num_bottlenecks(x) + 1)


def run_stack(x: Tensor, *, num_layers: int, window: int = 0) -> list[Tensor]:
    """The residual stream after each block of a random causal stack, at the last token."""
    width = x.shape[-1]
    config = StackConfig(
        vocab_size=1, width=width, layers=num_layers, heads=2, ffn_width=4 * width, sliding_window=window
    )
    stack = Stack(config, name="decoder", causal=True).to(x.dtype)
    stack.kernel = "eager"
    tap = Tap(record=["decoder.*.resid_post"])
    stack(x, make_layout(x), tap=tap)
    return [tap[f"decoder.{layer}.resid_post"][0, -1] for layer in range(num_layers)]


def run_lstm(x: Tensor, cut: int = -1) -> list[Tensor]:
    """The hidden states of a random LSTM after each step. No gradient passes through the state of step `cut`."""
    width = x.shape[-1]
    cell = nn.LSTMCell(width, width, dtype=x.dtype)
    states, state = [], None
    for step, token in enumerate(x.unbind(dim=1)):
        state = cell(token, state)
        if step == cut:
            state = (state[0].detach(), state[1].detach())
        states.append(state[0][0])
    return states


def longest_chain(out: Tensor) -> int:
    """The number of operations on the longest path of the autograd graph that ends at `out`."""
    lengths: dict[object, int] = {None: 0}
    stack = [out.grad_fn]
    while stack:
        node = stack[-1]
        before = [parent for parent, _ in node.next_functions if parent is not None]  # type: ignore[union-attr]
        unknown = [parent for parent in before if parent not in lengths]
        if unknown:
            stack += unknown
            continue
        lengths[node] = 1 + max((lengths[parent] for parent in before), default=0)
        stack.pop()
    return lengths[out.grad_fn]


def first_dependent(outputs: list[Tensor], x: Tensor) -> int:
    """The number of the first output, counted from 1, that depends on the first token of x."""
    for number, out in enumerate(outputs, start=1):
        if depends_on_first_token(out, x):
            return number
    raise AssertionError("no output depends on the first token")


def num_bottlenecks(x: Tensor) -> int:
    """The number of states of an LSTM through which all information from the first to the last token passes."""
    return sum(not depends_on_first_token(run_lstm(x, cut)[-1], x) for cut in range(x.shape[1] - 1))


def depends_on_first_token(out: Tensor, x: Tensor) -> bool:
    """Whether the gradient of an output for the first token of x differs from 0."""
    (gradient,) = torch.autograd.grad(out.sum(), x, retain_graph=True, allow_unused=True)
    return gradient is not None and bool(gradient[0, 0].abs().max() > 0)


def check(table: Table) -> list[Check]:
    """Attention needs a constant number of sequential operations and one layer; an LSTM needs one step per token."""
    longest = table.xs(CHAIN)[-1]
    chains = {name: list(table.curve(CHAIN, name).values()) for name in (ATTENTION, LSTM)}
    distances = {name: table.curve(DISTANCE, name) for name in (ATTENTION, WINDOW, LSTM)}
    growth = table.exponent(CHAIN, LSTM)
    spread = table.exponent(DISTANCE, WINDOW, [float(x) for x in table.xs(DISTANCE)[-2:]])
    return [
        Check(
            "a block needs the same number of sequential operations at every length; in an LSTM, the number grows "
            "linearly with the length (exponent 0.9–1.1)",
            len(set(chains[ATTENTION])) == 1 and 0.9 < growth < 1.1,
            f"block: {chains[ATTENTION][-1]:.0f}; LSTM: {chains[LSTM][-1]:.0f} at {longest} tokens, exponent "
            f"{growth:.2f}",
        ),
        Check(
            "the first token reaches the last one in one layer of attention, and in one step per token of an LSTM",
            set(distances[ATTENTION].values()) == {1} and all(d == x for x, d in distances[LSTM].items()),
            f"1 layer and {distances[LSTM][longest]:.0f} steps at {longest} tokens",
        ),
        Check(
            "with a window, the number of layers grows in proportion to the length (exponent 0.9–1.1)",
            0.9 < spread < 1.1,
            f"{distances[WINDOW][longest]:.0f} layers at {longest} tokens, exponent {spread:.2f}",
        ),
    ]


def example() -> None:
    """The idea in a few lines."""
    import torch

    lstm = torch.nn.LSTM(8, 8, batch_first=True)
    for length in (4, 16, 64):
        x = torch.randn(1, length, 8, requires_grad=True)
        attention = torch.nn.functional.scaled_dot_product_attention(x, x, x)
        for name, out in (("attention", attention), ("LSTM", lstm(x)[0])):
            (gradient,) = torch.autograd.grad(out[0, -1].sum(), x)
            ratio = gradient[0, 0].norm() / gradient[0, -1].norm()
            print(f"{length} tokens, {name}: the first token has {ratio:.0e} of the influence of the last one")


CLAIM = Claim(
    name="path-length",
    chapter="parts",
    title="Attention connects any two tokens in one layer, an LSTM step by step",
    quotes=(
        Quote("RNNs take O(sequence length) steps for distant words to interact.", "lecture"),
        Quote("Forward and Backward passes have O(sequence length) unparallelizable operations.", "lecture"),
        Quote("Maximum interaction distance: O(1), since all words interact at every layer!", "lecture"),
    ),
    question="How many operations must run one after another, and how far apart are the first and the last token?",
    method="We follow the autograd graph back from the output of the last token, and count the operations on its "
    "longest path, for one block and for one LSTM layer. For attention, the distance is the number of layers after "
    "which the output of the last token has a gradient with respect to the first one. For an LSTM, it is the number of "
    "states through which this gradient must pass: without any one of them it is zero.",
    lesson="All queries of a layer are independent of each other, so a GPU computes them at the same time; only the "
    "layers run one after another. In an LSTM each state needs the one before. The states are also the only way from "
    "the first token to the last one, so each of them must hold everything that is needed later. With a window, "
    "information moves at most one window per layer, so the distance grows with the length again.",
    limits="In generation a Transformer is sequential as well: one forward pass per token. The number of operations on "
    "the longest path depends on how torch splits a layer into operations; how it grows does not.",
    settings={
        "mini": PathLengthSettings((8, 16, 32)),
        "small": PathLengthSettings(),
        "full": PathLengthSettings((8, 16, 32, 64, 128, 256)),
    },
    run=run,
    check=check,
    charts=(
        Chart(measure=CHAIN, x="tokens", log_x=True, log_y=True),
        Chart(measure=DISTANCE, x="tokens", log_x=True, log_y=True),
    ),
    example=example,
    seeds={"mini": 1, "small": 1, "full": 1},
    is_deterministic=True,
)
