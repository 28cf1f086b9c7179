"""The FLOPs of attention that configs predict, counted by torch."""

from dataclasses import replace

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from qkv import Config, HeadConfig, StackConfig, build
from qkv.blocks import Inputs
from qkv.blocks.cost import attention_cost

STACK = StackConfig(vocab_size=20, width=16, layers=1, heads=4, kv_heads=2, head_dim=6, ffn_width=32)
NETWORK = build(Config(encoder=STACK, decoder=STACK, head=HeadConfig(kind="lm", outputs=20))).eval()


def count(num_tokens: int, num_source: int) -> int:
    """The FLOPs of a pass with a target and a source."""
    ids = torch.zeros(1, num_tokens, dtype=torch.long)
    source = torch.zeros(1, num_source, dtype=torch.long)
    with FlopCounterMode(display=False) as counter, torch.no_grad(), sdpa_kernel(SDPBackend.MATH):
        NETWORK(Inputs(ids, source=Inputs(source)))
    return counter.get_total_flops()


def test_projections_cost_two_operations_for_each_weight() -> None:
    for cross in (False, True):
        cost = attention_cost(replace(STACK, bias="none"), cross=cross)
        assert cost.flops == 2 * sum(cost.parameters.values())


def test_each_query_costs_the_same_for_each_key() -> None:
    """What grows with the product of both lengths is cross-attention; with the square of the source, self-attention."""
    cross, own = attention_cost(STACK, cross=True), attention_cost(STACK)
    inner = STACK.heads * STACK.head_dim
    assert (own.flops_per_key, own.flops_per_source_key) == (4 * inner, 0)
    assert (cross.flops_per_key, cross.flops_per_source_key) == (0, 4 * inner)
    by_both = count(16, 16) - count(16, 8) - count(8, 16) + count(8, 8)
    assert by_both == 8 * 8 * cross.flops_per_source_key
    square = count(8, 24) - 2 * count(8, 16) + count(8, 8)
    assert square == 2 * 8 * 8 * own.flops_per_key
