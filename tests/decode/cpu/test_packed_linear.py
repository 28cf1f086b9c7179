"""Weights in other layouts give what `F.linear` gives, follow the weights, and keep to their limit."""

import gc
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional as F

from qkv.decode.cpu import packed_linear as packed
from qkv.decode.cpu.packed_linear import MIN_KERNEL_ROWS, PackedWeights, best_layout, make_packed_linear, packed_weight

pytestmark = pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="this torch has no oneDNN")


@pytest.fixture(autouse=True)
def nothing_held() -> Iterator[None]:
    """No packed weights at the start, and one thread: the layout depends on the number of threads."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    packed._PACKED.clear()
    yield
    packed._PACKED.clear()
    torch.set_num_threads(threads)


def made(inputs: int, outputs: int, *, bias: bool = True, seed: int = 0) -> nn.Linear:
    torch.manual_seed(seed)
    return nn.Linear(inputs, outputs, bias=bias)


def check(apply: Callable[[Tensor], Tensor], linear: nn.Linear, rows: int) -> None:
    """Equal up to the order of sums, whose error grows with the sizes of the products."""
    x = torch.randn(rows, linear.in_features, generator=torch.Generator().manual_seed(rows))
    with torch.inference_mode():
        ours, exact = apply(x), F.linear(x.double(), linear.weight.double())
        exact = exact if linear.bias is None else exact + linear.bias.double()
        size = F.linear(x.double().abs(), linear.weight.double().abs()) + 1
    assert ours.dtype == torch.float32
    assert float(((ours - exact).abs() / size).max()) < 1e-6


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize(("inputs", "outputs"), [(64, 96), (17, 5), (1, 1), (33, 200)])
def test_it_is_the_linear_map_for_every_number_of_rows(inputs: int, outputs: int, bias: bool) -> None:
    linear = made(inputs, outputs, bias=bias)
    apply = make_packed_linear(linear)
    for rows in range(1, 41):
        check(apply, linear, rows)
    assert "blocked" in packed._PACKED[linear].layouts, "the packed weights are what ran"


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 40), st.integers(1, 70), st.integers(1, 70), st.booleans())
def test_it_is_the_linear_map_for_any_shape(rows: int, inputs: int, outputs: int, bias: bool) -> None:
    linear = made(inputs, outputs, bias=bias)
    check(make_packed_linear(linear), linear, rows)


@pytest.mark.parametrize("rows", [1, 3, 20])
def test_bfloat16_weights_are_packed_too(rows: int) -> None:
    if not packed._has_bfloat16_kernels():
        pytest.skip("oneDNN has no bfloat16 kernels on this CPU")
    linear = made(33, 80).bfloat16()
    x = torch.randn(rows, 33, generator=torch.Generator().manual_seed(rows)).bfloat16()
    with torch.inference_mode():
        ours, exact = make_packed_linear(linear)(x), linear.float()(x.float())
    assert ours.dtype == torch.bfloat16
    assert list(packed._PACKED[linear].layouts) == ["blocked"]
    torch.testing.assert_close(ours.float(), exact, atol=2e-2, rtol=2**-7)


SHAPES = {"transposed": (16, 64), "blocked": (16, 16)}
"""Inputs and outputs of matrices that one row reads in each of the layouts."""


@pytest.mark.parametrize("layout", SHAPES)
def test_one_row_reads_a_wide_matrix_in_a_layout_of_its_own(layout: str) -> None:
    linear = made(*SHAPES[layout])
    assert best_layout(1, linear.weight) == layout
    assert best_layout(2, linear.weight) == "blocked"
    check(make_packed_linear(linear), linear, 1)
    assert list(packed._PACKED[linear].layouts) == [layout]


@pytest.mark.parametrize("bias", [True, False])
def test_several_threads_read_one_part_each(bias: bool) -> None:
    """Outputs that cannot be split into equal parts are read in blocks."""
    linear, odd = made(64, 96, bias=bias), made(64, 97, bias=bias)
    torch.set_num_threads(2)
    assert best_layout(1, linear.weight) == "split"
    assert best_layout(1, odd.weight) == best_layout(2, linear.weight) == "blocked"
    assert best_layout(1, linear.weight.bfloat16()) == "blocked"
    for each in (linear, odd):
        apply = make_packed_linear(each)
        for rows in (1, 2, 5):
            check(apply, each, rows)
    assert packed._PACKED[linear].layouts["split"].shape == (2, 64, 48)


@pytest.mark.parametrize(("rows", "layout"), [(1, "transposed"), (2, "blocked"), (MIN_KERNEL_ROWS, "blocked")])
def test_what_is_held_is_what_answers(rows: int, layout: str) -> None:
    """Negative control: with a wrong matrix held for it, the answer is wrong."""
    linear, other = (made(*SHAPES["transposed"], seed=seed) for seed in (0, 1))
    wrong = packed_weight(other, layout)  # type: ignore[arg-type]
    assert wrong is not None
    packed._PACKED[linear] = PackedWeights(packed._fingerprint(linear.weight), {layout: wrong})  # type: ignore[dict-item]
    x = torch.randn(rows, linear.in_features)
    with torch.inference_mode():
        assert float((make_packed_linear(linear)(x) - linear(x)).abs().max()) > 1e-3


def test_a_layout_is_made_when_it_is_first_used_and_once() -> None:
    linear = made(*SHAPES["transposed"])
    apply = make_packed_linear(linear)
    assert not len(packed._PACKED)
    check(apply, linear, 1)
    assert list(packed._PACKED[linear].layouts) == ["transposed"]
    check(apply, linear, 2)
    assert list(packed._PACKED[linear].layouts) == ["transposed", "blocked"]
    assert packed_weight(linear, "blocked") is packed_weight(linear, "blocked")


def replaced(linear: nn.Linear) -> None:
    linear.weight = nn.Parameter(torch.randn_like(linear.weight))


def loaded(linear: nn.Linear) -> None:
    linear.load_state_dict(made(linear.in_features, linear.out_features, seed=5).state_dict())


def stepped(linear: nn.Linear) -> None:
    optimizer = torch.optim.AdamW(linear.parameters(), lr=0.1, foreach=True)
    linear(torch.ones(2, linear.in_features)).sum().backward()
    optimizer.step()


def one_number(linear: nn.Linear) -> None:
    with torch.no_grad():
        linear.weight[3, 9] += 5.0


def behind_its_back(linear: nn.Linear) -> None:
    linear.weight.data.mul_(2.0)


def a_row_behind_its_back(linear: nn.Linear) -> None:
    linear.weight.data[7] = 3.0


def the_row_after_the_last_column_behind_its_back(linear: nn.Linear) -> None:
    linear.weight.data[linear.in_features] = 3.0


def a_column_behind_its_back(linear: nn.Linear) -> None:
    linear.weight.data[:, 7] = 3.0


COUNTED = [loaded, stepped, one_number]
CHANGES = [*COUNTED, replaced, behind_its_back, a_row_behind_its_back, a_column_behind_its_back]
CHANGES += [the_row_after_the_last_column_behind_its_back]


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("rows", [1, 8])
def test_changed_weights_are_laid_out_again_in_the_next_run(change: Callable[[nn.Linear], None], rows: int) -> None:
    linear = made(24, 48)
    check(make_packed_linear(linear), linear, rows)
    change(linear)
    check(make_packed_linear(linear), linear, rows)
    assert len(packed._PACKED[linear].layouts) == 1


@pytest.mark.parametrize("change", COUNTED)
def test_a_map_that_lives_on_sees_changed_weights(change: Callable[[nn.Linear], None]) -> None:
    """As in an engine, whose maps are made once."""
    linear = made(24, 48)
    apply = make_packed_linear(linear)
    for rows in (1, 8):
        check(apply, linear, rows)
        change(linear)
        check(apply, linear, rows)


def test_no_more_is_held_than_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    linears = [made(16, 16, seed=n) for n in range(3)]
    monkeypatch.setattr(packed, "MAX_PACKED_BYTES", 2 * 4 * 16 * 16)
    maps = [make_packed_linear(linear) for linear in linears]
    for apply, linear in zip(maps, linears, strict=True):
        check(apply, linear, 8)
    assert [len(packed._PACKED[linear].layouts) for linear in linears] == [1, 1, 0]
    with torch.no_grad():
        linears[0].weight.add_(1.0)
    check(maps[0], linears[0], 8)
    assert packed._PACKED[linears[0]].layouts, "its own old copy does not count against it"


def test_what_is_held_goes_with_its_linear_map() -> None:
    linear = made(16, 16)
    packed_weight(linear, "blocked")
    gone = weakref.ref(linear)
    del linear
    gc.collect()
    assert gone() is None
    assert not len(packed._PACKED)


class Without:
    """The operators of a torch that lacks these."""

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"no operator {name}")


def test_a_torch_without_the_operators_multiplies_as_usual(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.ops, "mkldnn", Without())
    linear, x = made(16, 16), torch.randn(8, 16)
    with torch.inference_mode():
        assert torch.equal(make_packed_linear(linear)(x), F.linear(x, linear.weight, linear.bias))
    assert packed_weight(linear, "blocked") is None


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16])
def test_other_types_are_left_as_they_are(dtype: torch.dtype) -> None:
    linear, x = made(16, 16).to(dtype), torch.randn(8, 16).to(dtype)
    assert torch.equal(make_packed_linear(linear)(x), linear(x))
    assert not len(packed._PACKED)


def test_weights_that_do_not_tell_their_changes_are_left_as_they_are() -> None:
    with torch.inference_mode():
        linear, x = made(16, 16), torch.randn(8, 16)
        assert torch.equal(make_packed_linear(linear)(x), linear(x))
    assert not len(packed._PACKED)


def test_it_is_off_where_onednn_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packed, "_can_pack", lambda weight: False)
    linear, x = made(16, 16), torch.randn(8, 16)
    assert torch.equal(make_packed_linear(linear)(x), linear(x))
    assert not len(packed._PACKED)


def test_small_matrices_are_left_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    linear = made(16, 16)
    for limit, held in ((257, 0), (256, 1)):
        monkeypatch.setattr(packed, "MIN_PACKED_NUMEL", limit)
        check(make_packed_linear(linear), linear, 8)
        assert len(packed._PACKED) == held
