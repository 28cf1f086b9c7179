"""Many short texts on a CPU: the same answers and gradients as the formula, written out."""

import pytest
import torch
from torch import Tensor

from qkv.blocks.kernels.short import (
    MIN_VECTORISED_KEYS,
    ShortAttention,
    short_attention,
    should_use_short_attention,
    softmax_in_place,
)


def inputs(queries: int, keys: int, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor, Tensor]:
    """Heads of one projection each, as attention has them: not laid out side by side."""
    torch.manual_seed(0)
    made = [torch.randn(20, n, 4 * 8, dtype=dtype) for n in (queries, keys, keys)]
    q, k, v = (x.view(20, -1, 4, 8).transpose(1, 2).requires_grad_() for x in made)
    return q, k, v


def formula(q: Tensor, k: Tensor, v: Tensor, added: Tensor | None, scale: float) -> Tensor:
    scores = q @ k.transpose(-2, -1) * scale
    return (scores if added is None else scores + added).softmax(dim=-1) @ v


def hidden(kind: str, queries: int, keys: int) -> Tensor | None:
    if kind == "none":
        return None
    if kind == "causal":
        return torch.full((queries, keys), float("-inf"), dtype=torch.float64).triu(1)
    torch.manual_seed(1)
    seen = torch.rand(20, 1, queries, keys) < 0.7
    seen[..., 0] = True
    return torch.where(seen, 0.0, float("-inf")).double()


@pytest.mark.parametrize("kind", ["none", "causal", "dense"])
@pytest.mark.parametrize(
    ("queries", "keys"), [(7, 7), (22, 22), (5, MIN_VECTORISED_KEYS), (3, MIN_VECTORISED_KEYS - 1), (1, 1)]
)
def test_answers_and_gradients_are_those_of_the_formula(queries: int, keys: int, kind: str) -> None:
    q, k, v = inputs(queries, keys)
    assert should_use_short_attention(q, k)
    added = hidden(kind, queries, keys)
    back = torch.randn_like(q)
    found, wanted = short_attention(q, k, v, added, 0.3), formula(q, k, v, added, 0.3)
    torch.testing.assert_close(found, wanted, rtol=1e-12, atol=1e-12)
    mine = torch.autograd.grad(found, (q, k, v), back)
    theirs = torch.autograd.grad(wanted, (q, k, v), back)
    for one, other in zip(mine, theirs, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-11, atol=1e-12)
    with torch.no_grad():
        torch.testing.assert_close(short_attention(q, k, v, added, 0.3), wanted, rtol=1e-12, atol=1e-12)


def test_others_are_left_to_torch() -> None:
    q, k, _ = inputs(5, 5, torch.float32)
    assert should_use_short_attention(q, k)
    assert not should_use_short_attention(q, k[:1]), "keys that all rows share"
    assert not should_use_short_attention(q, k[:, :2]), "heads that share keys"
    assert not should_use_short_attention(q, k[:, :, :0])
    assert not should_use_short_attention(q, k.double())
    assert not should_use_short_attention(q[:3], k[:3]), "few"
    assert not should_use_short_attention(*inputs(65, 65)[:2]), "long"
    with torch.autocast("cpu", torch.bfloat16):
        assert not should_use_short_attention(q, k)


def test_its_gradient_is_that_of_differences() -> None:
    q, k, v = (x.detach()[:17, :1].requires_grad_() for x in inputs(3, 4))
    assert torch.autograd.gradcheck(lambda *x: ShortAttention.apply(*x, None, 0.5), (q, k, v))


def test_a_bias_that_learns_gets_its_gradient() -> None:
    q, k, v = inputs(5, 5)
    bias = torch.zeros(1, 4, 5, 5, dtype=torch.float64, requires_grad=True)
    short_attention(q, k, v, bias, 0.3).sum().backward()
    assert bias.grad is not None
    (wanted,) = torch.autograd.grad(formula(q, k, v, bias, 0.3).sum(), bias)
    torch.testing.assert_close(bias.grad, wanted)


def test_transforms_of_functions_go_through_it() -> None:
    """`torch.func` differentiates the formula itself."""
    q, k, v = (x.detach() for x in inputs(4, 4))
    found = torch.func.grad(lambda x: short_attention(x, k, v, None, 0.3).square().sum())(q)
    asked = q.clone().requires_grad_()
    (wanted,) = torch.autograd.grad(formula(asked, k, v, None, 0.3).square().sum(), asked)
    torch.testing.assert_close(found, wanted)
    each = torch.func.vmap(lambda x: short_attention(x, k, v, None, 0.3))(torch.stack([q, 2 * q]))
    torch.testing.assert_close(each[1], formula(2 * q, k, v, None, 0.3))


def test_softmax_in_place_takes_what_is_hidden() -> None:
    scores = torch.tensor([[1e4, -1e4, float("-inf")], [0.0, 0.0, 0.0]], dtype=torch.float64)
    wanted = scores.softmax(dim=-1)
    torch.testing.assert_close(softmax_in_place(scores), wanted)
