"""The stack: blocks in order, shared or not, a last norm or none, windows per layer, recomputation."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from qkv.blocks import AttentionKernel, EncoderMemory, SelfCache, SequenceLayout, Stack, attention, make_layout
from qkv.blocks.kernels import selection
from qkv.blocks.kernels.choose import prepare_mask
from qkv.blocks.kernels.sdpa import sdpa
from qkv.blocks.mask import Mask
from qkv.blocks.position import Rotary

Make = Callable[..., Stack]


def vectors(rows: int = 2, length: int = 6, seed: int = 0) -> Tensor:
    return torch.randn(rows, length, 16, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


# ── The last norm ────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(("place", "there"), [("pre", True), ("sandwich", True), ("post", False)])
def test_a_last_norm_is_there_where_blocks_do_not_end_with_one(make_stack: Make, place: str, there: bool) -> None:
    """Trap 11; `tests/parity/test_parity_torch.py` holds the same against torch.nn.Transformer."""
    stack, x = make_stack(norm_placement=place), vectors()
    here = make_layout(x)
    prepared = prepare_mask(Mask(here, here), x)
    h = x
    for block in stack.blocks:
        h = block(h, prepared)
    assert (stack.norm is not None) == there
    assert torch.equal(stack(x, here), h if stack.norm is None else stack.norm(h))


# ── Layers that share weights ────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("layers", "distinct", "order"),
    [(4, 0, [0, 1, 2, 3]), (4, 1, [0, 0, 0, 0]), (4, 2, [0, 0, 1, 1]), (5, 2, [0, 0, 0, 1, 1])],
)
def test_neighbouring_layers_share_blocks(make_stack: Make, layers: int, distinct: int, order: list[int]) -> None:
    stack, x = make_stack(layers=layers, num_layer_groups=distinct), vectors()
    assert len(stack.blocks) == (distinct or layers)
    here = make_layout(x)
    prepared = prepare_mask(Mask(here, here), x)
    h = x
    for number in order:
        h = stack.blocks[number](h, prepared)
    assert stack.norm is not None
    assert torch.equal(stack(x, here), stack.norm(h))


def test_layers_that_share_weights_have_caches_of_their_own(make_stack: Make) -> None:
    stack, x = make_stack(causal=True, layers=3, num_layer_groups=1), vectors()
    full = stack(x, make_layout(x))
    cache = SelfCache(3, 2, 4, 6, 4, dtype=torch.float64)
    with torch.no_grad():
        for t in range(6):
            step = stack(x[:, t : t + 1], SequenceLayout(None, torch.tensor([[t]])), cache)
            assert torch.allclose(step[:, 0], full[:, t], atol=1e-12)


# ── Windows ──────────────────────────────────────────────────────────────────────────────────────────────────────


def test_each_layer_has_the_window_and_the_rotary_base_that_the_config_names(make_stack: Make) -> None:
    stack = make_stack(
        layers=3,
        sliding_window=1,
        sliding_window_layers=(1,),
        position="rotary",
        rotary_base=500.0,
        rotary_base_sliding=20.0,
    )
    x = vectors()
    here = make_layout(x)
    h = x
    for layer, (window, base) in enumerate([(0, 500.0), (1, 20.0), (0, 500.0)]):
        turn = Rotary(here.positions, 4, base, None, torch.float64)
        h = stack.blocks[layer](h, prepare_mask(Mask(here, here, window=window), x), turn)
    assert stack.norm is not None
    assert torch.equal(stack(x, here), stack.norm(h))


def test_the_window_does_not_touch_cross_attention(make_stack: Make) -> None:
    """Trap 13: a target at position 0 sees the whole source, however narrow the decoder's own window."""
    stack = make_stack(causal=True, cross=True, sliding_window=1)
    x, source = vectors(1, 1), vectors(1, 9, seed=1).requires_grad_()
    stack(x, make_layout(x), memory=EncoderMemory(source, make_layout(source))).square().sum().backward()
    assert source.grad is not None
    assert (source.grad.abs().sum(-1) > 0).all()


# ── Recomputation ────────────────────────────────────────────────────────────────────────────────────────────────


def gradients(stack: Stack, recompute: bool) -> list[Tensor]:
    stack.gradient_checkpointing = recompute
    stack.zero_grad()
    x = vectors().requires_grad_()
    source = vectors(length=3, seed=1)
    segment = torch.tensor([[1, 1, 2, 2, 2, 0], [1, 1, 1, 1, 2, 2]])
    here = make_layout(x, segment)
    torch.manual_seed(7)
    there = make_layout(source, torch.tensor([[1, 2, 2], [1, 1, 2]]))
    out = stack(x, here, memory=EncoderMemory(source, there) if stack.blocks[0].cross is not None else None)
    out.square().sum().backward()
    return [out.detach(), *(p.grad.clone() for p in (x, *stack.parameters()) if p.grad is not None)]


@pytest.mark.parametrize("dropout", [0.0, 0.3], ids=["plain", "dropout"])
@pytest.mark.parametrize("position", ["rotary", "alibi", "t5"])
def test_recomputing_activations_gives_equal_gradients(make_stack: Make, position: str, dropout: float) -> None:
    stack = make_stack(
        causal=True, cross=True, position=position, dropout=dropout, attention_dropout=dropout, ffn_dropout=dropout
    ).train()
    kept, recomputed = gradients(stack, False), gradients(stack, True)
    assert len(kept) == 2 + len(list(stack.parameters()))
    assert all(torch.equal(a, b) for a, b in zip(kept, recomputed, strict=True))


def test_recomputing_runs_every_block_a_second_time(make_stack: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """The proof that something was recomputed at all."""
    stack = make_stack(causal=True).train()
    calls = []
    for block in stack.blocks:
        forward = block.ffn.forward
        monkeypatch.setattr(block.ffn, "forward", lambda *a, f=forward: calls.append(1) or f(*a))
    gradients(stack, False)
    assert len(calls) == 2
    gradients(stack, True)
    assert len(calls) == 2 + 4


# ── Kernels ──────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_dropout_of_weights_costs_a_fast_kernel_in_training_alone(make_stack: Make) -> None:
    stack, x = make_stack(attention_dropout=0.1), vectors()
    stack.kernel = "flex"
    assert stack.eval().prepare_masks(x, make_layout(x), make_layout(x))[0].kernel == "flex"
    assert stack.train().prepare_masks(x, make_layout(x), make_layout(x))[0].kernel == "sdpa"


# ── What does not fit ────────────────────────────────────────────────────────────────────────────────────────────


def test_a_cache_of_another_number_of_rows_is_refused(make_stack: Make) -> None:
    stack, x = make_stack(causal=True), vectors(rows=3)
    cache = SelfCache(2, 2, 4, 6, 4, dtype=torch.float64)
    with pytest.raises(ValueError, match="the cache has batch size 2, the input 3"):
        stack(x, make_layout(x), cache)
    assert cache.filled == 0


# ── Some places only ─────────────────────────────────────────────────────────────────────────────────────────────

SHAPES = {
    "pre": {},
    "post": {"norm_placement": "post"},
    "sandwich": {"norm_placement": "sandwich"},
    "parallel": {"residual": "parallel"},
    "shared": {"layers": 3, "num_layer_groups": 1},
    "windows and rotary": {"sliding_window": 2, "position": "rotary"},
    "slopes": {"position": "alibi"},
    "buckets": {"position": "t5"},
}


@pytest.mark.parametrize("recompute", [False, True])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("shape", SHAPES)
def test_some_places_only_are_those_of_all(make_stack: Make, shape: str, causal: bool, recompute: bool) -> None:
    stack, x = make_stack(causal=causal, **SHAPES[shape]).train(), vectors().requires_grad_()
    stack.gradient_checkpointing = recompute
    segment = torch.tensor([[1, 1, 1, 2, 2, 0], [1, 1, 1, 1, 1, 1]])
    only = torch.tensor([4, 0, 11, 4])  # any order, and twice the same
    wanted = stack(x, make_layout(x, segment)).flatten(0, 1)[only]
    found = stack(x, make_layout(x, segment), selected=only)
    assert found.shape == (4, 16)
    torch.testing.assert_close(found, wanted, rtol=1e-12, atol=1e-13)
    weights = torch.arange(64, dtype=torch.float64).view(4, 16).cos()
    gradients = [torch.autograd.grad((out * weights).sum(), [x, *stack.parameters()]) for out in (found, wanted)]
    for one, other in zip(*gradients, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-13)


@pytest.mark.parametrize("kernel", ["auto", "eager"])
@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("shape", SHAPES)
def test_only_those_that_are_read_ask(
    make_stack: Make, shape: str, causal: bool, packed: bool, kernel: AttentionKernel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As many places in each row: the last block has as many queries, and vectors and gradients are the same."""
    stack, x = make_stack(causal=causal, **SHAPES[shape]).train(), vectors().requires_grad_()
    stack.kernel = kernel
    segment = torch.tensor([[1, 1, 1, 2, 2, 0], [1, 1, 1, 1, 1, 1]]) if packed else None
    only = torch.tensor([[4], [9]])
    wanted = stack(x, make_layout(x, segment)).flatten(0, 1)[only.flatten()]
    asked: list[int] = []

    def seen(q: Tensor, *rest: Any) -> Tensor:
        asked.append(q.shape[2])
        out: Tensor = sdpa(q, *rest)
        return out

    monkeypatch.setitem(attention.KERNELS, "sdpa", seen)
    found = stack(x, make_layout(x, segment), selected=only)
    assert found.shape == (2, 16)
    assert asked[-1:] == ([] if kernel == "eager" else [1])
    torch.testing.assert_close(found, wanted, rtol=1e-9, atol=1e-10)
    weights = torch.arange(32, dtype=torch.float64).view(2, 16).cos()
    gradients = [torch.autograd.grad((out * weights).sum(), [x, *stack.parameters()]) for out in (found, wanted)]
    for one, other in zip(*gradients, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-8, atol=1e-10)


def test_many_are_chosen_after_all_have_asked(make_stack: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where half of a row would ask all of it may as well, and beside a cache the queries are few already."""
    stack, x = make_stack(causal=True), vectors()
    wanted = stack(x, make_layout(x)).flatten(0, 1)
    monkeypatch.setattr(selection, "prepare_mask", None)
    only = torch.tensor([[1, 4, 5], [6, 7, 8]])
    torch.testing.assert_close(stack(x, make_layout(x), selected=only), wanted[only.flatten()])
    cache = SelfCache(2, 2, 4, 6, 4, dtype=torch.float64)
    one = torch.tensor([[5], [11]])
    torch.testing.assert_close(stack(x, make_layout(x), cache, selected=one), wanted[one.flatten()])


def test_a_stack_that_reads_a_source_answers_for_all(make_stack: Make) -> None:
    stack, x = make_stack(causal=True, cross=True), vectors()
    with pytest.raises(ValueError, match="leave out `selected`"):
        stack(x, make_layout(x), memory=EncoderMemory(x, make_layout(x)), selected=torch.tensor([0]))
