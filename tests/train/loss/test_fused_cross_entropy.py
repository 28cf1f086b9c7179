"""The fused loss is cross-entropy of a linear map: the loss and every gradient, whatever the parts."""

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from qkv.data.objectives import IGNORE_INDEX
from qkv.train.loss import fused_cross_entropy as module
from qkv.train.loss.fused_cross_entropy import _loss_and_gradient, fused_cross_entropy
from qkv.train.loss.training_module import cross_entropy

N, C, V = 37, 8, 50


def made(bias: bool, dtype: torch.dtype = torch.float64) -> tuple[list[Tensor], Tensor]:
    draw = torch.Generator().manual_seed(1)
    shapes = [(N, C), (V, C), *([(V,)] if bias else [])]
    tensors = [torch.randn(shape, generator=draw, dtype=dtype).requires_grad_() for shape in shapes]
    targets = torch.randint(0, V, (N,), generator=draw)
    targets[::5] = IGNORE_INDEX
    return tensors, targets


def gradients(loss: Tensor, tensors: list[Tensor]) -> list[Tensor]:
    return list(torch.autograd.grad(loss * 0.37, tensors))  # a share, as a micro-batch has


def reference(tensors: list[Tensor], targets: Tensor, smoothing: float) -> Tensor:
    return cross_entropy(F.linear(*tensors), targets, smoothing)


@pytest.mark.parametrize("even", [1, 64])
@pytest.mark.parametrize("parts", [1, 3, 36, 37, 100])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("bias", [False, True])
def test_it_is_cross_entropy_of_a_linear_map(
    bias: bool, smoothing: float, parts: int, even: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the matrix rounded up to an even size, too, as on a GPU."""
    monkeypatch.setattr(module, "pad_vocabulary", lambda w: F.pad(w, (0, 0, 0, -len(w) % even)))
    tensors, targets = made(bias)
    x, weight, *rest = tensors
    loss = fused_cross_entropy(x, weight, rest[0] if rest else None, targets, smoothing, parts)
    wanted = reference(tensors, targets, smoothing)
    torch.testing.assert_close(loss, wanted, rtol=1e-12, atol=0)
    for one, other in zip(gradients(loss, tensors), gradients(wanted, tensors), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-13)


def test_places_without_a_label_get_no_gradient() -> None:
    tensors, targets = made(bias=True)
    to_x = gradients(fused_cross_entropy(*tensors, targets, 0.1, 4), tensors)[0]
    assert (to_x.abs().sum(-1) > 0).tolist() == (targets != IGNORE_INDEX).tolist()


def test_what_is_frozen_costs_nothing() -> None:
    (x, weight), targets = made(bias=False)
    weight = weight.detach()
    loss = fused_cross_entropy(x, weight, None, targets, 0.0, 2)
    (found,) = torch.autograd.grad(loss, [x])
    (wanted,) = torch.autograd.grad(reference([x, weight], targets, 0.0), [x])
    torch.testing.assert_close(found, wanted, rtol=1e-10, atol=1e-13)


def test_what_is_only_looked_at_costs_no_gradient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Evaluation: the weight asks for a gradient, and nobody else does."""
    tensors, targets = made(bias=True)
    loss = fused_cross_entropy(*tensors, targets, 0.1, 2)
    products: list[int] = []
    monkeypatch.setattr(module, "_weight_gradient", lambda a, b: products.append(1) or a @ b)
    with torch.no_grad():
        still = fused_cross_entropy(*tensors, targets, 0.1, 2)
    assert not products
    assert not still.requires_grad
    assert float(still) == float(loss.detach())


def test_a_sum_over_many_places_does_not_overflow_in_float16() -> None:
    draw = torch.Generator().manual_seed(2)
    x, weight = torch.rand(70_000, 4, generator=draw) + 1, torch.zeros(8, 4, requires_grad=True)
    targets = torch.zeros(70_000, dtype=torch.long)
    with torch.autocast("cpu", torch.float16):
        (found,) = torch.autograd.grad(fused_cross_entropy(x, weight, None, targets, 0.0, 1), [weight])
    (wanted,) = torch.autograd.grad(reference([x, weight], targets, 0.0), [weight])
    assert float(wanted.abs().max()) > 65_504
    torch.testing.assert_close(found, wanted, rtol=1e-2, atol=1.0)


def test_under_autocast_products_are_in_half_precision_and_sums_are_not() -> None:
    tensors, targets = made(bias=True, dtype=torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        loss, wanted = fused_cross_entropy(*tensors, targets, 0.1, 3), reference(tensors, targets, 0.1)
    assert loss.dtype == torch.float32
    torch.testing.assert_close(loss, wanted, rtol=2e-3, atol=0)
    exact = gradients(reference(tensors, targets, 0.1), tensors)
    for one, tensor, other in zip(gradients(loss, tensors), tensors, exact, strict=True):
        assert one.dtype == tensor.dtype
        assert float((one - other).norm() / other.norm()) < 0.02


def test_it_compiles_whole() -> None:
    tensors, targets = made(bias=True)
    compiled = torch.compile(lambda *t: fused_cross_entropy(*t, targets, 0.1, 3), backend="aot_eager", fullgraph=True)
    found, wanted = gradients(compiled(*tensors), tensors), gradients(reference(tensors, targets, 0.1), tensors)
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-13)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize(
    ("logits", "wanted"),
    [
        ([0.0, 200.0, 1.0], 200.0),  # a probability that comes out as 0
        ([100.0, 86.0, 85.0], 1.1374e-6),  # a loss that is small beside the logits
        ([1e4, 9_995.0, 9_994.0], 9.1743e-3),
    ],
)
def test_small_and_large_losses_are_exact(logits: list[float], wanted: float, smoothing: float) -> None:
    row = torch.tensor([logits])
    loss, _ = _loss_and_gradient(row.clone(), None, torch.tensor([0]), smoothing, 3)
    exact = cross_entropy(row.double(), torch.tensor([0]), smoothing)
    assert float(loss) == pytest.approx(float(exact), rel=0.1 if wanted < 1e-3 else 1e-3)
    assert smoothing or float(loss) == pytest.approx(wanted, rel=0.1 if wanted < 1e-3 else 1e-3)
