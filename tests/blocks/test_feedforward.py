"""The feed-forward: every kind against its formula, written in plain Python."""

import math
from collections.abc import Callable

import pytest
import torch

from qkv.blocks.config import StackConfig
from qkv.blocks.feedforward import apply_gate
from qkv.blocks.parts import PARTS, make_part

Config = Callable[..., StackConfig]

FORMULAS: dict[str, Callable[[float], float]] = {
    "relu": lambda x: max(0.0, x),
    "relu2": lambda x: max(0.0, x) ** 2,
    "gelu": lambda x: x * 0.5 * (1 + math.erf(x / math.sqrt(2))),
    "gelu_tanh": lambda x: 0.5 * x * (1 + math.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
    "quick_gelu": lambda x: x / (1 + math.exp(-1.702 * x)),
    "silu": lambda x: x / (1 + math.exp(-x)),
}
BENDS = {"reglu": "relu", "reglu2": "relu2", "geglu": "gelu", "geglu_tanh": "gelu_tanh", "swiglu": "silu"}


@pytest.mark.parametrize("kind", [*FORMULAS, *BENDS])
@pytest.mark.parametrize("bias", ["all", "none"])
def test_a_feedforward_is_its_formula(small: Config, kind: str, bias: str) -> None:
    torch.manual_seed(0)
    layer = make_part("feedforward", small(feedforward=kind, bias=bias)).double()
    x = 2 * torch.randn(1, 3, 16, dtype=torch.float64)
    wide = x @ layer.up.weight.T + (0.0 if layer.up.bias is None else layer.up.bias)
    bend = FORMULAS[BENDS.get(kind, kind)]
    if kind in BENDS:
        gate, value = wide[..., :24], wide[..., 24:]
        inner = torch.tensor([bend(v) for v in gate.flatten().tolist()], dtype=x.dtype).view_as(gate) * value
    else:
        inner = torch.tensor([bend(v) for v in wide.flatten().tolist()], dtype=x.dtype).view_as(wide)
    expected = inner @ layer.down.weight.T + (0.0 if layer.down.bias is None else layer.down.bias)
    assert torch.allclose(layer(x), expected, atol=1e-12)


def test_the_gated_kinds_are_those_with_a_formula_here() -> None:
    rows = {name: dict(part.options) for name, part in PARTS["feedforward"].items() if name != "moe"}
    plain = {name: {"activation": name} for name in FORMULAS}
    assert rows == plain | {name: {"activation": bend, "gated": True} for name, bend in BENDS.items()}


def test_a_gated_kind_holds_gate_and_value_in_one_matrix(small: Config) -> None:
    assert make_part("feedforward", small(feedforward="swiglu")).up.weight.shape == (48, 16)
    assert make_part("feedforward", small(feedforward="silu")).up.weight.shape == (24, 16)


@pytest.mark.parametrize("bias", ["all", "attention", "qkv", "none"])
def test_biases_are_where_the_config_has_them(small: Config, bias: str) -> None:
    layer = make_part("feedforward", small(bias=bias))
    assert (layer.up.bias is not None) == (layer.down.bias is not None) == (bias == "all")


def test_dropout_acts_between_the_two_products_in_training_alone(small: Config) -> None:
    torch.manual_seed(0)
    layer = make_part("feedforward", small(ffn_dropout=0.5, bias="none")).double()
    x = torch.randn(1, 3, 16, dtype=torch.float64)
    assert torch.equal(layer.eval()(x), layer(x))
    torch.manual_seed(1)
    dropped = layer.train()(x)
    torch.manual_seed(1)
    kept = layer.dropout(torch.nn.functional.gelu(layer.up(x)))
    assert torch.equal(dropped, layer.down(kept))


@pytest.mark.parametrize("shape", [(3, 10), (2, 4, 10)])
def test_the_gate_of_a_cpu_has_the_gradient_of_the_formula(shape: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    h = torch.randn(shape, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda h: apply_gate(h, torch.nn.functional.silu), (h,))
    gate, value = h.chunk(2, dim=-1)
    out = apply_gate(h, torch.nn.functional.silu)
    assert torch.equal(out, torch.nn.functional.silu(gate) * value)
    assert out.grad_fn is not None
    assert "CpuSiluGate" in out.grad_fn.name()
    each = torch.func.vmap(torch.func.grad(lambda h: apply_gate(h, torch.nn.functional.silu).sum()))(h)
    torch.testing.assert_close(each, torch.autograd.grad(out.sum(), h)[0])
