"""The kernel for the loss is the reference, in place. It needs Triton: on a GPU, or interpreted on a CPU."""

import os
from typing import Any

import pytest
import torch

from qkv.data.objectives import IGNORE
from qkv.train.fused_loss import _loss_and_gradient

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
if DEVICE == "cpu":
    os.environ["TRITON_INTERPRET"] = "1"  # before Triton is loaded
loss_kernels: Any = pytest.importorskip(
    "qkv.train.loss_kernels", reason="Triton is not installed", exc_type=ImportError
)

ROWS, OUTPUTS, WIDTH = 9, 50, 64


@pytest.mark.parametrize("block", [32, 8192])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("bias", [False, True])
def test_rows_become_their_gradient(bias: bool, smoothing: float, block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loss_kernels, "BLOCK", block)
    draw = torch.Generator().manual_seed(0)
    logits = (3 * torch.randn(ROWS, WIDTH, generator=draw)).to(DEVICE)
    shift = torch.randn(OUTPUTS, generator=draw).to(DEVICE) if bias else None
    targets = torch.randint(0, OUTPUTS, (ROWS,), generator=draw).to(DEVICE)
    targets[::4] = IGNORE
    loss, back = _loss_and_gradient(logits.clone(), shift, targets, smoothing, OUTPUTS)
    losses = loss_kernels.loss_in_place(logits, shift, targets, smoothing, OUTPUTS)
    torch.testing.assert_close(losses.sum(), loss, rtol=1e-5, atol=1e-5)
    assert bool((losses[::4] == 0).all())
    torch.testing.assert_close(logits, back, rtol=1e-5, atol=1e-6)
