"""The block: norm before, after or on both sides, serial or parallel, against compositions written out by hand."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from qkv.blocks import Stack
from qkv.blocks.block import Block
from qkv.blocks.cache import EncoderMemory, LayerMemory
from qkv.blocks.kernels.choose import prepare_mask
from qkv.blocks.kernels.prepared import PreparedMask
from qkv.blocks.mask import Mask, make_layout

Make = Callable[..., Stack]


@pytest.fixture
def x() -> Tensor:
    return torch.randn(2, 5, 16, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


def prepared(x: Tensor) -> PreparedMask:
    place = make_layout(x)
    return prepare_mask(Mask(place, place, causal=True), x)


def block_of(stack: Stack) -> Block:
    block = stack.block_of(0)
    assert isinstance(block, Block)
    return block


def test_pre_norm_norms_what_each_part_reads(make_stack: Make, x: Tensor) -> None:
    b = block_of(make_stack(norm_placement="pre"))
    h = x + b.attention(b.attention_sub.norm(x), prepared(x))
    assert torch.equal(b(x, prepared(x)), h + b.ffn(b.ffn_sub.norm(h)))


def test_post_norm_norms_each_sum(make_stack: Make, x: Tensor) -> None:
    b = block_of(make_stack(norm_placement="post"))
    h = b.attention_sub.norm(x + b.attention(x, prepared(x)))
    assert torch.equal(b(x, prepared(x)), b.ffn_sub.norm(h + b.ffn(h)))


def test_sandwich_norms_what_a_part_reads_and_what_it_adds(make_stack: Make, x: Tensor) -> None:
    b = block_of(make_stack(norm_placement="sandwich"))
    assert b.attention_sub.norm_out is not None
    assert b.ffn_sub.norm_out is not None
    h = x + b.attention_sub.norm_out(b.attention(b.attention_sub.norm(x), prepared(x)))
    assert torch.equal(b(x, prepared(x)), h + b.ffn_sub.norm_out(b.ffn(b.ffn_sub.norm(h))))


def test_parallel_adds_both_parts_of_the_same_input(make_stack: Make, x: Tensor) -> None:
    b = block_of(make_stack(residual="parallel"))
    expected = x + b.attention(b.attention_sub.norm(x), prepared(x)) + b.ffn(b.ffn_sub.norm(x))
    assert torch.equal(b(x, prepared(x)), expected)


@pytest.mark.parametrize("place", ["pre", "post"])
def test_without_skip_connections_each_part_replaces_its_input(make_stack: Make, x: Tensor, place: str) -> None:
    b = block_of(make_stack(residual="none", norm_placement=place))
    if place == "pre":
        h = b.attention(b.attention_sub.norm(x), prepared(x))
        expected = b.ffn(b.ffn_sub.norm(h))
    else:
        h = b.attention_sub.norm(b.attention(x, prepared(x)))
        expected = b.ffn_sub.norm(b.ffn(h))
    assert torch.equal(b(x, prepared(x)), expected)


@pytest.mark.parametrize("place", ["pre", "post", "sandwich"])
def test_without_norms_a_block_is_its_parts_and_their_sums(make_stack: Make, x: Tensor, place: str) -> None:
    b = block_of(make_stack(norm="none", norm_placement=place))
    h = x + b.attention(x, prepared(x))
    assert torch.equal(b(x, prepared(x)), h + b.ffn(h))


@pytest.mark.parametrize("place", ["pre", "post", "sandwich"])
def test_cross_attention_comes_between_with_a_norm_of_its_own(make_stack: Make, x: Tensor, place: str) -> None:
    b = block_of(make_stack(cross=True, norm_placement=place))
    assert b.cross is not None
    assert b.cross_sub is not None
    vectors = torch.randn(2, 3, 16, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    memory = EncoderMemory(vectors, make_layout(vectors))
    source = LayerMemory(memory, 0, prepare_mask(Mask(make_layout(x), memory.layout), x))

    def around(sub: torch.nn.Module, h: Tensor, part: Callable[[Tensor], Tensor]) -> Tensor:
        if place == "post":
            return sub.norm(h + part(h))  # type: ignore[operator]
        out = part(sub.norm(h))  # type: ignore[operator]
        return h + (sub.norm_out(out) if place == "sandwich" else out)  # type: ignore[operator]

    h = around(b.attention_sub, x, lambda t: b.attention(t, prepared(x)))
    h = around(b.cross_sub, h, lambda t: b.cross(t, source))
    h = around(b.ffn_sub, h, b.ffn)
    assert torch.equal(b(x, prepared(x), source=source), h)


def test_an_embedding_norm_may_stand_in_for_the_first_norm(make_stack: Make, x: Tensor) -> None:
    """ModernBERT: block 0 reads the stream as it comes; the others norm it."""
    stack = make_stack(embedding_norm="replaces_first")
    first, second = stack.blocks
    assert not list(first.attention_sub.norm.parameters())
    assert list(second.attention_sub.norm.parameters())
    h = x + first.attention(x, prepared(x))
    assert torch.equal(first(x, prepared(x)), h + first.ffn(first.ffn_sub.norm(h)))


@pytest.mark.parametrize("bias", ["all", "attention", "qkv", "none"])
def test_biases_of_attention_are_where_the_config_has_them(make_stack: Make, bias: str) -> None:
    block = block_of(make_stack(cross=True, bias=bias))
    assert block.cross is not None
    assert (block.attention.qkv.bias is not None) == (bias != "none")
    assert (block.cross.q.bias is not None) == (block.cross.kv.bias is not None) == (bias != "none")
    for part in (block.attention, block.cross):
        assert (part.out.bias is not None) == (bias in ("all", "attention"))


def test_dropout_acts_on_what_each_part_adds(make_stack: Make, x: Tensor) -> None:
    b = block_of(make_stack(dropout=0.5)).train()
    torch.manual_seed(3)
    found = b(x, prepared(x))
    torch.manual_seed(3)
    drop = b.attention_sub.dropout
    h = x + drop(b.attention(b.attention_sub.norm(x), prepared(x)))
    assert torch.equal(found, h + drop(b.ffn(b.ffn_sub.norm(h))))
    assert torch.equal(b.eval()(x, prepared(x)), b(x, prepared(x)))
