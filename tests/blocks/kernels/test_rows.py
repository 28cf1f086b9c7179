"""Blocks of queries on a CPU: the same outputs and gradients as the formula, written out."""

import pytest
import torch
from torch import Tensor

from qkv.blocks.attention import eager
from qkv.blocks.kernels import rows
from qkv.blocks.kernels.choose import prepare_mask
from qkv.blocks.kernels.prepared import PreparedMask
from qkv.blocks.kernels.rows import (
    MIN_VECTORISED_KEYS,
    RowAttention,
    plan_rows,
    row_attention,
    softmax_in_place,
    supports_rows,
)
from qkv.blocks.kernels.sdpa import sdpa
from qkv.blocks.mask import Mask, make_layout


def inputs(
    queries: int, keys: int, dtype: torch.dtype = torch.float64, sequences: int = 20
) -> tuple[Tensor, Tensor, Tensor]:
    """Heads of one projection each, as attention has them: not contiguous."""
    torch.manual_seed(0)
    made = [torch.randn(sequences, n, 4 * 8, dtype=dtype) for n in (queries, keys, keys)]
    q, k, v = (x.view(sequences, -1, 4, 8).transpose(1, 2).requires_grad_() for x in made)
    return q, k, v


def formula(q: Tensor, k: Tensor, v: Tensor, added: Tensor | None, scale: float) -> Tensor:
    scores = q @ k.transpose(-2, -1) * scale
    return (scores if added is None else scores + added).softmax(dim=-1) @ v


def attend(q: Tensor, k: Tensor, v: Tensor, added: Tensor | None, scale: float, causal: bool = False) -> Tensor:
    return row_attention(q, k, v, added, scale, plan_rows(q, k, added, None, causal))


def additive(kind: str, queries: int, keys: int) -> Tensor | None:
    if kind == "none":
        return None
    if kind == "causal":
        return torch.full((queries, keys), float("-inf"), dtype=torch.float64).triu(1)
    torch.manual_seed(1)
    allowed = torch.rand(20, 1, queries, keys) < 0.7
    allowed[..., 0] = True
    return torch.where(allowed, 0.0, float("-inf")).double()


SHORT = [(7, 7), (22, 22), (5, MIN_VECTORISED_KEYS), (3, MIN_VECTORISED_KEYS - 1), (1, 1)]
LONG = [(65, 65), (300, 300), (129, 70), (70, 300)]


@pytest.mark.parametrize("kind", ["none", "causal", "dense"])
@pytest.mark.parametrize(("queries", "keys"), [*SHORT, *LONG])
def test_outputs_and_gradients_equal_the_formula(queries: int, keys: int, kind: str) -> None:
    q, k, v = inputs(queries, keys)
    added = additive(kind, queries, keys)
    assert supports_rows(q, k, added)
    back = torch.randn_like(q)
    causal = kind == "causal"
    found, wanted = attend(q, k, v, None if causal else added, 0.3, causal), formula(q, k, v, added, 0.3)
    torch.testing.assert_close(found, wanted, rtol=1e-12, atol=1e-12)
    mine = torch.autograd.grad(found, (q, k, v), back)
    theirs = torch.autograd.grad(wanted, (q, k, v), back)
    for one, other in zip(mine, theirs, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-12)
    with torch.no_grad():
        torch.testing.assert_close(
            attend(q, k, v, None if causal else added, 0.3, causal), wanted, rtol=1e-12, atol=1e-12
        )


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("window", [0, 5])
def test_packed_sequences_equal_the_reference(causal: bool, bias: bool, window: int) -> None:
    """Documents of many lengths and padding everywhere. A block skips the keys of other documents."""
    lengths = [[0, 3, 200, 1, 90], [290, 4, 0], [0, 0, 17], [130, 128]]
    documents = torch.zeros(4, 300, dtype=torch.long)
    for row, of_row in enumerate(lengths):
        start = row  # padding in front
        for number, length in enumerate(of_row):
            documents[row, start : start + length] = number + 1
            start += length + 1  # one token of padding
    q, k, v = inputs(300, 300, sequences=4)
    layout = make_layout(torch.zeros(4, 300), documents)
    mask = Mask(layout, layout, causal, window)
    score_bias = torch.randn(1, 4, 300, 300, dtype=torch.float64) if bias else None
    prepared = prepare_mask(mask, torch.zeros(4, 300, 32, dtype=torch.float64), kernel="sdpa", bias=score_bias)
    found, wanted = sdpa(q, k, v, prepared, 0.3), eager(q, k, v, PreparedMask(mask, "eager", score_bias), 0.3)
    torch.testing.assert_close(found, wanted, rtol=1e-12, atol=1e-12)
    assert prepared.row_plan is not None
    computed = sum(
        (block.queries.stop - block.queries.start) * (block.keys.stop - block.keys.start)
        for block in prepared.row_plan.blocks
    )
    assert computed < (0.9 if not causal else 0.7) * 4 * 300 * 300, "keys of other documents, or of the future"
    back = torch.randn_like(q)
    mine, theirs = (torch.autograd.grad(out, (q, k, v), back) for out in (found, wanted))
    for one, other in zip(mine, theirs, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("length", [20, 300])
def test_bfloat16_differs_by_its_rounding(length: int) -> None:
    """Scores and weights are rounded to 8 bits: the outputs are within 2⁻⁶ of the formula in float64."""
    q, k, v = inputs(length, length, torch.bfloat16)
    found = attend(q, k, v, None, 0.3, causal=True)
    exact = [x.detach().double().requires_grad_() for x in (q, k, v)]
    wanted = formula(*exact, additive("causal", length, length), 0.3)
    assert found.dtype == torch.bfloat16
    torch.testing.assert_close(found.double(), wanted, rtol=2**-6, atol=2**-6)
    back = torch.randn_like(q)
    mine, theirs = torch.autograd.grad(found, (q, k, v), back), torch.autograd.grad(wanted, exact, back.double())
    for one, other in zip(mine, theirs, strict=True):
        assert (one.double() - other).norm() < 0.01 * other.norm()


@pytest.mark.parametrize("length", [20, 140])
def test_dropout_multiplies_the_weights(length: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a known multiplier: the same outputs and gradients as the formula with that multiplier."""
    monkeypatch.setattr(rows, "BLOCK_SCORES", 1)  # each sequence has a block of its own
    multiplier = 2.0 * (torch.rand(20, 4, length, length) < 0.5).double()
    blocks = plan_rows(*inputs(length, length)[:2], None, None, False).blocks
    parts = iter([multiplier[b.sequences, :, b.queries].flatten(0, 1) for b in blocks])
    monkeypatch.setattr(rows, "dropout_multiplier", lambda pattern, p: next(parts))
    q, k, v = inputs(length, length)
    found = row_attention(q, k, v, None, 0.3, plan_rows(q, k, None, None, False), 0.5)
    wanted = ((q @ k.transpose(-2, -1) * 0.3).softmax(-1) * multiplier) @ v
    torch.testing.assert_close(found, wanted, rtol=1e-12, atol=1e-12)
    back = torch.randn_like(q)
    mine, theirs = (torch.autograd.grad(out, (q, k, v), back) for out in (found, wanted))
    for one, other in zip(mine, theirs, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-12)


def test_other_cases_are_left_to_torch() -> None:
    q, k, _ = inputs(5, 5, torch.float32)
    assert supports_rows(q, k, None)
    assert not supports_rows(q, k[:1], None), "keys that all sequences share"
    assert not supports_rows(q, k[:, :2], None), "heads that share keys"
    assert not supports_rows(q, k[:, :, :0], None)
    assert not supports_rows(q, k.double(), None)
    assert not supports_rows(q[:3], k[:3], None), "few"
    assert not supports_rows(q.to(torch.float16), k.to(torch.float16), None)
    assert not supports_rows(q, *inputs(5, 65, torch.float32, sequences=2)[1:2], None), "few queries, many keys"
    q, k, _ = inputs(65, 65, torch.float32)
    learned = torch.zeros(1, 4, 65, 65, requires_grad=True)
    assert not supports_rows(q, k, learned), "a bias that learns"
    assert supports_rows(q, k, learned.detach())
    q, k = torch.zeros(64, 16, 200, 1), torch.zeros(64, 16, 200, 1)
    assert not supports_rows(q, k, None), "the patterns would need too much memory"
    with torch.no_grad():
        assert supports_rows(q, k, None), "none are saved"
        assert not supports_rows(q, torch.zeros(64, 16, 1025, 1), None), "too many keys"


def test_nothing_is_saved_without_a_backward_pass() -> None:
    q, k, v = (x.detach() for x in inputs(70, 70))
    assert attend(q, k, v, None, 0.3).grad_fn is None
    with torch.no_grad():
        assert attend(q.requires_grad_(), k, v, None, 0.3).grad_fn is None


@pytest.mark.parametrize("length", [4, 130])
def test_its_gradient_is_that_of_differences(length: int) -> None:
    q, k, v = (x.detach()[:1, :1, :, :1].requires_grad_() for x in inputs(length, length))
    plan = plan_rows(q, k, None, None, True)
    assert torch.autograd.gradcheck(lambda *x: RowAttention.apply(*x, None, 0.5, plan, 0.0, True), (q, k, v))


def test_a_bias_that_learns_gets_its_gradient() -> None:
    q, k, v = inputs(5, 5)
    bias = torch.zeros(1, 4, 5, 5, dtype=torch.float64, requires_grad=True)
    attend(q, k, v, bias, 0.3).sum().backward()
    assert bias.grad is not None
    (wanted,) = torch.autograd.grad(formula(q, k, v, bias, 0.3).sum(), bias)
    torch.testing.assert_close(bias.grad, wanted)


@pytest.mark.parametrize("causal", [False, True])
def test_transforms_of_functions_go_through_it(causal: bool) -> None:
    """`torch.func` differentiates the formula itself."""
    q, k, v = (x.detach() for x in inputs(4, 4))
    added = additive("causal", 4, 4) if causal else None
    plan = plan_rows(q, k, None, None, causal)
    found = torch.func.grad(lambda x: row_attention(x, k, v, None, 0.3, plan).square().sum())(q)
    asked = q.clone().requires_grad_()
    (wanted,) = torch.autograd.grad(formula(asked, k, v, added, 0.3).square().sum(), asked)
    torch.testing.assert_close(found, wanted)
    each = torch.func.vmap(lambda x: row_attention(x, k, v, None, 0.3, plan))(torch.stack([q, 2 * q]))
    torch.testing.assert_close(each[1], formula(2 * q, k, v, added, 0.3))


def test_softmax_in_place_takes_masked_scores() -> None:
    scores = torch.tensor([[1e4, -1e4, float("-inf")], [0.0, 0.0, 0.0]], dtype=torch.float64)
    wanted = scores.softmax(dim=-1)
    torch.testing.assert_close(softmax_in_place(scores), wanted)
