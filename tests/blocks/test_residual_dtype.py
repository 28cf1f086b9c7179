"""What runs from block to block may be in bfloat16 while a network trains under autocast."""

import pytest
import torch
from torch import Tensor

from qkv.blocks import Stack, StackConfig, make_layout


def run(norm_placement: str, stream: torch.dtype | None, *, training: bool) -> tuple[Tensor, set[torch.dtype]]:
    """What comes out, and the types of what went into the blocks."""
    torch.manual_seed(0)
    config = StackConfig(vocab_size=9, width=16, layers=3, heads=2, ffn_width=32, norm_placement=norm_placement)  # type: ignore[arg-type]
    stack = Stack(config, name="decoder", causal=True).train(training)
    stack.residual_dtype = stream
    seen: set[torch.dtype] = set()
    for block in stack.blocks:
        block.register_forward_pre_hook(lambda _, inputs: seen.add(inputs[0].dtype))
    x = torch.randn(2, 5, 16)
    with torch.autocast("cpu", torch.bfloat16):
        out = stack(x, make_layout(torch.zeros(2, 5)))
    out.float().sum().backward()
    return out.detach().float(), seen


@pytest.mark.parametrize("norm_placement", ["pre", "post", "sandwich"])
def test_blocks_read_the_stream_in_its_type(norm_placement: str) -> None:
    exact, wide = run(norm_placement, None, training=True)
    rough, narrow = run(norm_placement, torch.bfloat16, training=True)
    resting, rested = run(norm_placement, torch.bfloat16, training=False)
    assert (wide, narrow, rested) == ({torch.float32}, {torch.bfloat16}, {torch.float32})
    assert torch.equal(resting, exact)  # there is no dropout: resting differs by the stream alone
    assert not torch.equal(rough, exact)
    torch.testing.assert_close(rough, exact, rtol=0.05, atol=0.05)
