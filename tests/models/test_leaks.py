"""Nothing leaks: gradients from an output to what it may not see are exactly 0.0.

The future, padding on both sides, other documents of the row, other rows; for every family, kind of position and
kernel with a backward pass. What may be seen has a gradient, and deliberately broken masks are caught by this check.
"""

from collections.abc import Callable
from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor

from qkv.blocks import Tap
from qkv.blocks.mask import Mask, SequenceLayout

POSITIONS = ["sinusoidal", "sinusoidal_split", "learned", "rotary", "alibi", "t5", "none"]
FAMILIES = ["encoder", "decoder", "seq2seq"]

SEGMENT = torch.tensor([[1, 1, 1, 2, 2, 0], [0, 0, 1, 1, 1, 1]])
SOURCE_SEGMENT = torch.tensor([[1, 1, 2, 2, 0], [0, 1, 1, 1, 0]])
Make = Callable[..., Any]


class Leak(AssertionError):
    """A gradient where there must be none."""


def check_leaks(
    network: Any, run: Make, family: str, change: dict[str, Callable[[Tensor], Tensor]] | None = None
) -> None:
    """Follow every output back to every input vector, and hold what arrives against the rule."""
    rows, length = SEGMENT.shape
    sources = SOURCE_SEGMENT.shape[1]
    generator = torch.Generator().manual_seed(0)
    ids, source = (torch.randint(0, 40, (rows, n), generator=generator) for n in (length, sources))
    name = "encoder" if family == "encoder" else "decoder"
    moves = {name: torch.zeros(rows, length, 16, dtype=torch.float64, requires_grad=True)}
    if family == "seq2seq":
        moves["encoder"] = torch.zeros(rows, sources, 16, dtype=torch.float64, requires_grad=True)
    changes = {f"{stack}.0.resid_pre": (lambda x, m=move: x + m) for stack, move in moves.items()}
    tap = Tap(change=changes | (change or {}))
    out = run(network, ids, SEGMENT, source, SOURCE_SEGMENT, tap=tap)
    weights = torch.randn(out.shape[-1], dtype=torch.float64, generator=generator)
    for row, i in product(range(rows), range(length)):
        if SEGMENT[row, i] == 0:
            continue
        found = torch.autograd.grad((out[row, i] * weights).sum(), list(moves.values()), retain_graph=True)
        for (stack, _), gradient in zip(moves.items(), found, strict=True):
            segment = SEGMENT if stack == name else SOURCE_SEGMENT
            arrived = gradient.abs().amax(-1)  # (rows, tokens)
            for other, j in product(range(rows), range(segment.shape[1])):
                may = other == row and int(segment[other, j]) == int(SEGMENT[row, i])
                if stack == "decoder":
                    may = may and j <= i
                if not may and float(arrived[other, j]) != 0.0:
                    raise Leak(f"output {row}, {i} reaches {stack} {other}, {j}: {float(arrived[other, j])}")
                if may:
                    assert float(arrived[other, j]) > 0.0, f"output {row}, {i} does not see {stack} {other}, {j}"


@pytest.mark.parametrize("kernel", ["eager", "sdpa"])
@pytest.mark.parametrize("position", POSITIONS)
@pytest.mark.parametrize("family", FAMILIES)
def test_no_gradient_reaches_what_may_not_be_seen(
    network: Make, run: Make, family: str, position: str, kernel: str
) -> None:
    check_leaks(network(family, position=position, kernel=kernel), run, family)


@pytest.mark.parametrize("family", FAMILIES)
def test_no_gradient_leaks_in_training(network: Make, run: Make, family: str) -> None:
    """Dropout and recomputation change nothing about who sees whom."""
    trained = network(family, position="rotary", dropout=0.1).train()
    for name in ("encoder", "decoder"):
        if hasattr(trained, name):
            getattr(trained, name).gradient_checkpointing = True
    check_leaks(trained, run, family)


def test_a_window_is_reached_layer_by_layer_and_no_farther(network: Make, ids: Make) -> None:
    """Two layers with a window of 1: an output sees two tokens back, exactly."""
    small = network("decoder", sliding_window=1)
    move = torch.zeros(1, 6, 16, dtype=torch.float64, requires_grad=True)
    out, _ = small.hidden(ids(1, 6), tap=Tap(change={"decoder.0.resid_pre": lambda x: x + move}))
    gradient = torch.autograd.grad(out[0, 5].square().sum(), move)[0][0].abs().amax(-1)
    assert (gradient[:3] == 0.0).all()
    assert (gradient[3:] > 0.0).all()


# ── Negative controls: the same check finds a broken mask ────────────────────────────────────────────────────────


def one_too_far(self: Mask, query_segment: Tensor, key_segment: Tensor, query: Tensor, key: Tensor) -> Tensor:
    return (query_segment == key_segment) & (key_segment != 0) & ((key <= query + 1) | (not self.causal))


def between_documents(self: Mask, query_segment: Tensor, key_segment: Tensor, query: Tensor, key: Tensor) -> Tensor:
    return (query_segment != 0) & (key_segment != 0) & ((key <= query) | (not self.causal))


def into_padding(self: Mask, query_segment: Tensor, key_segment: Tensor, query: Tensor, key: Tensor) -> Tensor:
    return ((query_segment == key_segment) | (key_segment == 0)) & ((key <= query) | (not self.causal))


BROKEN = [
    ("decoder", one_too_far),
    ("seq2seq", one_too_far),
    *((family, between_documents) for family in FAMILIES),
    *((family, into_padding) for family in FAMILIES),
]


@pytest.mark.parametrize(("family", "rule"), BROKEN, ids=[f"{family}-{rule.__name__}" for family, rule in BROKEN])
def test_a_broken_mask_is_caught(
    network: Make, run: Make, monkeypatch: pytest.MonkeyPatch, family: str, rule: Callable[..., Tensor]
) -> None:
    monkeypatch.setattr(Mask, "allows", rule)
    if rule is into_padding:  # padding has a second lock: what attention reads there is blank
        monkeypatch.setattr(SequenceLayout, "zero_padding", lambda self, x: x)
    with pytest.raises(Leak):
        check_leaks(network(family, position="rotary"), run, family)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_leak_between_rows_is_caught(network: Make, run: Make, family: str) -> None:
    name = "encoder" if family == "encoder" else "decoder"
    mixed = {f"{name}.1.resid_pre": lambda x: x + 0.01 * x.mean(0, keepdim=True)}
    with pytest.raises(Leak):
        check_leaks(network(family), run, family, mixed)
