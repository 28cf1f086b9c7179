"""GELU with its bias in one kernel is GELU of the linear map. It needs Triton: on a GPU, or interpreted on a CPU."""

import os
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from qkv.blocks import biased_gelu as module
from qkv.blocks.config import StackConfig
from qkv.blocks.feedforward import FeedForward

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
if DEVICE == "cpu":
    os.environ["TRITON_INTERPRET"] = "1"  # before Triton is loaded
kernels: Any = pytest.importorskip(
    "qkv.blocks.biased_gelu_kernels", reason="Triton is not installed", exc_type=ImportError
)
pytestmark = pytest.mark.filterwarnings(
    "ignore:overflow encountered in exp:RuntimeWarning"
)  # as it should: σ is 0 there
KINDS = {"gelu": "none", "gelu_tanh": "tanh"}


def bent(kind: str, z: Tensor) -> Tensor:
    """x · σ(p(x)), as the page says it."""
    square = z * z
    total = sum(power * square**k for k, power in enumerate(module.POWERS[kind]))
    return z * torch.sigmoid(z * total)


@pytest.mark.parametrize("kind", KINDS)
def test_the_polynomial_is_gelu(kind: str) -> None:
    """Within less than bfloat16 rounds away, in value and slope, and it goes to 0 and x at the ends."""
    x = torch.linspace(-12, 12, 100_001, dtype=torch.float64, requires_grad=True)
    exact, found = F.gelu(x, approximate=KINDS[kind]), bent(kind, x)
    slopes = [torch.autograd.grad(y.sum(), x)[0] for y in (exact, found)]
    most = 1.3e-4 if kind == "gelu" else 1e-12
    assert float((found - exact).detach().abs().max()) < most
    assert float((slopes[1] - slopes[0]).abs().max()) < 4 * most
    near = x.detach().abs() < 5
    share = ((found - exact) / exact.abs().clamp(min=1e-300)).detach()[near & (x != 0)].abs()
    assert float(share.max()) < (2**-9 if kind == "gelu" else 1e-9)
    assert float(found[0].detach().abs()) < 1e-12
    assert float((found[-1] - x[-1]).detach().abs()) < 1e-12


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("rows", "width"), [(1, 4), (33, 128), (70, 200), (64, 1536)])
def test_values_and_gradients(kind: str, rows: int, width: int) -> None:
    """Rows and columns that fill programs, and those that do not."""
    draw = torch.Generator().manual_seed(rows)
    x, bias, back = (
        torch.randn(shape, generator=draw).to(DEVICE) for shape in ((rows, width), (width,), (rows, width))
    )
    x, bias = (2 * x).requires_grad_(), bias.requires_grad_()
    found = kernels.biased_gelu(x, bias, list(module.POWERS[kind]))
    wanted = bent(kind, x + bias)
    torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-6)
    gradients = [torch.autograd.grad(y, (x, bias), back) for y in (found, wanted)]
    torch.testing.assert_close(*gradients, rtol=1e-4, atol=1e-5)


def test_no_rows() -> None:
    x, bias = torch.zeros(0, 8, device=DEVICE, requires_grad=True), torch.zeros(8, device=DEVICE, requires_grad=True)
    found = kernels.biased_gelu(x, bias, list(module.POWERS["gelu"]))
    found.sum().backward()
    assert found.shape == (0, 8)
    assert bias.grad is not None
    assert not bool(bias.grad.any())


def network(kind: str, bias: str = "all") -> FeedForward:
    torch.manual_seed(3)
    shape = StackConfig(vocab=8, width=16, layers=1, heads=2, ffn_width=48, feedforward=kind, bias=bias)  # type: ignore[arg-type]
    return FeedForward(replace(shape, ffn_dropout=0.0)).to(DEVICE)


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_the_feed_forward_takes_it(kind: str, compiled: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """In bfloat16 by autocast: outputs and all gradients are those without it, up to rounding."""
    ffn = network(kind)
    x = torch.randn(3, 5, 16, generator=torch.Generator().manual_seed(4)).to(DEVICE)
    calls: list[str] = []

    def found() -> list[Tensor]:
        torch.compiler.reset()
        run: Any = torch.compile(ffn, backend="aot_eager") if compiled else ffn
        with torch.autocast(DEVICE, torch.bfloat16):
            out = run(x)
        return [out, *torch.autograd.grad(out.float().square().sum(), list(ffn.parameters()))]

    wanted = found()
    monkeypatch.setattr(module, "kernels", kernels)
    fits = module.fits

    def seen(kind: str, up: nn.Module, x: Tensor) -> bool:
        answer = fits(kind, up, x) if x.is_cuda else True
        calls.append(kind)
        return answer

    monkeypatch.setattr(module, "fits", seen)
    for mine, other in zip(found(), wanted, strict=True):
        assert mine.dtype == other.dtype
        torch.testing.assert_close(mine.float(), other.float(), rtol=3e-2, atol=3e-2 * float(other.abs().max()))
    assert calls


def test_who_it_is_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Plain maps with a bias in half precision, and nothing else."""

    class OnGpu(Tensor):
        is_cuda = True

    def asked(ffn: FeedForward, kind: torch.dtype = torch.bfloat16) -> bool:
        return module.fits(ffn.kind, ffn.up, torch.zeros(1, 16, dtype=kind).as_subclass(OnGpu))

    assert not asked(network("gelu"))  # before the kernels are loaded
    monkeypatch.setattr(module, "kernels", kernels)
    assert asked(network("gelu"))
    assert asked(network("gelu_tanh"), torch.float16)
    assert not asked(network("gelu"), torch.float32)
    assert not asked(network("relu"))
    assert not asked(network("geglu"))
    assert not asked(network("gelu", bias="none"))
    assert not module.fits("gelu", network("gelu").up, torch.zeros(1, 16, dtype=torch.bfloat16))
    other = network("gelu")
    other.up = nn.Sequential(other.up)  # type: ignore[assignment]
    assert not asked(other)
