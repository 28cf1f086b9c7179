"""Norms, against √(σ² + ε) written by hand; gain and bias, either of which may go."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from qkv.blocks.config import StackConfig
from qkv.blocks.norm import make_norm

Config = Callable[..., StackConfig]


def by_hand(x: Tensor, norm: str, eps: float) -> Tensor:
    """One vector at a time, with the population variance and ε inside the root."""
    rows = []
    for row in x.view(-1, x.shape[-1]).tolist():
        mean = sum(row) / len(row) if norm == "layernorm" else 0.0
        variance = sum((value - mean) ** 2 for value in row) / len(row)
        rows.append([(value - mean) / (variance + eps) ** 0.5 for value in row])
    return torch.tensor(rows, dtype=x.dtype).view_as(x)


@pytest.mark.parametrize("norm", ["layernorm", "rmsnorm"])
@pytest.mark.parametrize("eps", [1e-12, 1e-5, 0.5])
def test_a_norm_is_its_formula(small: Config, norm: str, eps: float) -> None:
    """The large ε tells √(σ² + ε) from √σ² + ε, and the width of 5 a population variance from a sample's."""
    torch.manual_seed(0)
    x = torch.randn(2, 3, 5, dtype=torch.float64) + 1.0
    layer = make_norm(small(norm=norm, norm_eps=eps), 5).double()
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.copy_(torch.randn(5))
    expected = by_hand(x, norm, eps) * layer.weight
    if norm == "layernorm":
        expected = expected + layer.bias
    assert torch.allclose(layer(x), expected, atol=1e-12)


@pytest.mark.parametrize(
    ("norm", "affine", "names"),
    [
        ("layernorm", "gain_bias", {"weight", "bias"}),
        ("layernorm", "gain", {"weight"}),
        ("layernorm", "none", set()),
        ("rmsnorm", "gain_bias", {"weight"}),
        ("rmsnorm", "gain", {"weight"}),
        ("rmsnorm", "none", set()),
        ("none", "gain_bias", set()),
    ],
)
def test_gain_and_bias_may_go(small: Config, norm: str, affine: str, names: set[str]) -> None:
    layer = make_norm(small(norm=norm, norm_affine=affine), 8)
    assert {name for name, _ in layer.named_parameters()} == names


@pytest.mark.parametrize("norm", ["layernorm", "rmsnorm"])
def test_norms_take_their_statistics_in_float32(small: Config, norm: str) -> None:
    """Trap 19: a long vector far from zero, whose squares bfloat16 could not add up."""
    x = (100.0 + torch.randn(4, 4096, generator=torch.Generator().manual_seed(0))).bfloat16()
    layer = make_norm(small(norm=norm), 4096)
    exact = layer.double()(x.double())
    low = layer.bfloat16()(x)
    assert low.dtype == torch.bfloat16
    assert torch.allclose(low.double(), exact, rtol=2**-7, atol=2**-7)
    mean = x.mean(-1, keepdim=True) if norm == "layernorm" else torch.zeros(1, dtype=torch.bfloat16)
    total = torch.zeros(4, dtype=torch.bfloat16)
    for column in (x - mean).square().unbind(-1):
        total = total + column
    naive = (x - mean) / (total / 4096).sqrt()[:, None]
    assert not torch.allclose(naive.double(), exact, rtol=2**-7, atol=2**-7), "the negative control"


@pytest.mark.parametrize("weight_dtype", [torch.float32, torch.bfloat16])
def test_bfloat16_training_on_a_cpu_is_the_formula_rounded_once(small: Config, weight_dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    x = torch.randn(2, 7, 32).bfloat16().requires_grad_()
    layer = make_norm(small(norm="rmsnorm", norm_eps=1e-5), 32).to(weight_dtype)
    torch.nn.init.normal_(layer.weight)
    out = layer(x)
    assert out.grad_fn is not None
    assert "CpuRMSNorm" in out.grad_fn.name()
    exact = x.detach().double().requires_grad_()
    gain = layer.weight.detach().double().requires_grad_()
    wanted = exact * (exact.square().mean(-1, keepdim=True) + 1e-5).rsqrt() * gain
    torch.testing.assert_close(out.double(), wanted, rtol=2**-8, atol=1e-6)
    back = torch.randn_like(out)
    mine = torch.autograd.grad(out, (x, layer.weight), back)
    theirs = torch.autograd.grad(wanted, (exact, gain), back.double())
    assert mine[0].dtype == torch.bfloat16
    assert mine[1].dtype == weight_dtype
    for one, other in zip(mine, theirs, strict=True):
        torch.testing.assert_close(one.double(), other, rtol=2**-7, atol=2**-7)
