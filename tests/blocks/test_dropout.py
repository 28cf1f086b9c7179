"""Dropout on a CPU: the share that is dropped, the mean, the gradient, and the seed."""

import pytest
import torch

from qkv.blocks.dropout import Dropout, dropout_multiplier


@pytest.mark.parametrize("p", [0.0, 0.1, 0.5, 0.9, 1.0])
def test_the_share_that_is_dropped(p: float) -> None:
    torch.manual_seed(0)
    multiplier = dropout_multiplier(torch.empty(999, 1001), p)
    assert float((multiplier == 0).double().mean()) == pytest.approx(p, abs=0.003)  # six standard deviations
    if p < 1:
        assert multiplier.unique().tolist() == pytest.approx(sorted({0.0, 1 / (1 - p)} if p else {1.0}))


def test_neighbours_are_dropped_independently() -> None:
    torch.manual_seed(0)
    dropped = (dropout_multiplier(torch.empty(2**20), 0.5) == 0).double() - 0.5
    for distance in (1, 2, 3, 4, 5, 8):
        assert abs(float((dropped[:-distance] * dropped[distance:]).mean())) < 0.0015  # six standard deviations


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("shape", [(3, 5), (1,), (0, 4)])
def test_the_gradient_is_dropped_at_the_same_numbers(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    x = torch.ones(shape, dtype=dtype, requires_grad=True)
    out = Dropout(0.25)(x)
    out.sum().backward()
    assert x.grad is not None
    assert out.dtype == dtype
    assert torch.equal(x.grad, out.detach())  # of ones, the output is the multiplier


def test_the_seed_decides() -> None:
    outs = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        outs.append(Dropout(0.5)(torch.ones(100)))
    assert torch.equal(outs[0], outs[1])
    assert not torch.equal(outs[0], outs[2])


def test_evaluation_and_zero_leave_x() -> None:
    x = torch.randn(4)
    assert Dropout(0.5).eval()(x) is x
    assert Dropout(0.0)(x) is x


def test_transforms_of_functions_go_through_it() -> None:
    torch.manual_seed(0)
    grad = torch.func.grad(lambda x: Dropout(0.5)(x).sum())(torch.ones(1000))
    assert set(grad.tolist()) == {0.0, 2.0}
