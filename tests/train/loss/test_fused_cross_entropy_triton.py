"""The kernel for the loss is the reference, in place. It needs Triton: on a GPU, or interpreted on a CPU."""

import os
from typing import Any

import pytest
import torch
from interpreted import replace_language_once
from torch.nn import functional as F

from qkv.data.objectives import IGNORE_INDEX
from qkv.train.loss import fused_cross_entropy as module
from qkv.train.loss.fused_cross_entropy import _loss_and_gradient, fused_cross_entropy

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
if DEVICE == "cpu":
    os.environ["TRITON_INTERPRET"] = "1"  # before Triton is loaded
kernels: Any = pytest.importorskip(
    "qkv.train.loss.fused_cross_entropy_triton", reason="Triton is not installed", exc_type=ImportError
)
replace_language_once()

ROWS, OUTPUTS, WIDTH = 9, 50, 64


@pytest.mark.parametrize("block", [32, 8192])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("bias", [False, True])
def test_rows_become_their_gradient(bias: bool, smoothing: float, block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "BLOCK", block)
    draw = torch.Generator().manual_seed(0)
    logits = (3 * torch.randn(ROWS, WIDTH, generator=draw)).to(DEVICE)
    shift = torch.randn(OUTPUTS, generator=draw).to(DEVICE) if bias else None
    targets = torch.randint(0, OUTPUTS, (ROWS,), generator=draw).to(DEVICE)
    targets[::4] = IGNORE_INDEX
    loss, back = _loss_and_gradient(logits.clone(), shift, targets, smoothing, OUTPUTS)
    losses = kernels.cross_entropy_in_place(logits, shift, targets, smoothing, OUTPUTS)
    torch.testing.assert_close(losses.sum(), loss, rtol=1e-5, atol=1e-5)
    assert bool((losses[::4] == 0).all())
    torch.testing.assert_close(logits, back, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("parts", [1, 3])
def test_the_fused_loss_takes_the_kernel(parts: int, compiled: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The loss and all gradients are those without it, inside the compiler too."""
    draw = torch.Generator().manual_seed(1)
    shapes = ((ROWS, 8), (OUTPUTS, 8), (OUTPUTS,))
    tensors = [torch.randn(shape, generator=draw).to(DEVICE).requires_grad_() for shape in shapes]
    targets = torch.randint(0, OUTPUTS, (ROWS,), generator=draw).to(DEVICE)
    targets[::4] = IGNORE_INDEX
    calls: list[int] = []

    def found() -> list[torch.Tensor]:
        run: Any = torch.compile(fused_cross_entropy, backend="aot_eager") if compiled else fused_cross_entropy
        loss = run(*tensors, targets, 0.1, parts)
        return [loss, *torch.autograd.grad(loss * 0.37, tensors)]

    monkeypatch.setattr(module, "has_in_place_kernel", lambda logits: False)
    wanted = found()
    torch.compiler.reset()
    monkeypatch.setattr(module, "triton_kernels", kernels)
    monkeypatch.setattr(module, "has_in_place_kernel", lambda logits: True)
    launched = kernels.cross_entropy_kernel

    class Counted:
        def __getitem__(self, grid: tuple[int]) -> Any:
            calls.append(grid[0])
            return launched[grid]

    monkeypatch.setattr(kernels, "cross_entropy_kernel", Counted())
    for mine, theirs in zip(found(), wanted, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-5, atol=1e-6)
    assert sum(calls) == ROWS
    torch.compiler.reset()


def test_small_and_large_losses_are_exact() -> None:
    rows = torch.tensor([[0.0, 200.0, 1.0, 0.0], [100.0, 86.0, 85.0, 0.0], [1e4, 9_995.0, 9_994.0, 0.0]])
    found = kernels.cross_entropy_in_place(
        rows.clone().to(DEVICE), None, torch.zeros(3, dtype=torch.long, device=DEVICE), 0.0, 4
    )
    wanted = F.cross_entropy(rows.double(), torch.zeros(3, dtype=torch.long), reduction="none").float()
    torch.testing.assert_close(found.cpu(), wanted, rtol=0.1, atol=0.0)


def test_logits_that_do_not_lie_row_by_row_are_refused() -> None:
    with pytest.raises(ValueError, match="the kernel needs contiguous rows"):
        kernels.cross_entropy_in_place(torch.zeros(WIDTH, ROWS).T, None, torch.zeros(ROWS).long(), 0.0, OUTPUTS)


def test_nothing_to_learn_costs_nothing() -> None:
    assert kernels.cross_entropy_in_place(torch.zeros(0, WIDTH), None, torch.zeros(0).long(), 0.0, OUTPUTS).shape == (
        0,
    )
