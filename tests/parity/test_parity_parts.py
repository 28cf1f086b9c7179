"""Parts that no imported architecture has, against the same parts of transformers, with random weights."""

import pytest
import torch
from reference_models import exact, transformers
from torch import Tensor, nn

from qkv.blocks import Stack, StackConfig, Tap
from qkv.blocks.attention import eager
from qkv.blocks.block import ResidualWrapper
from qkv.blocks.experts import Experts
from qkv.blocks.kernels.prepared import PreparedMask
from qkv.blocks.mask import Mask, make_layout
from qkv.blocks.parts import make_part

SIZE = {"vocab_size": 9, "width": 12, "layers": 1, "heads": 4, "kv_heads": 2, "ffn_width": 10, "bias": "none"}


def mixture(**settings: object) -> Experts:
    torch.manual_seed(0)
    part: Experts = make_part("feedforward", StackConfig(**{**SIZE, "feedforward": "moe", "experts": 5, **settings}))
    return part.double()


def fill(theirs: nn.Module, ours: Experts) -> None:
    """Copy our weights to a block of transformers, which stacks the matrices of its experts."""
    with torch.no_grad():
        theirs.gate.weight.copy_(ours.router.weight)
        theirs.experts.gate_up_proj.copy_(torch.stack([one.up.weight for one in ours.experts]))
        theirs.experts.down_proj.copy_(torch.stack([one.down.weight for one in ours.experts]))


@pytest.mark.parametrize("name", ["mixtral", "olmoe"])
@pytest.mark.parametrize("chosen", [1, 2, 5])
def test_a_mixture_is_that_of_transformers(name: str, chosen: int) -> None:
    from transformers.models.mixtral.modeling_mixtral import MixtralSparseMoeBlock, load_balancing_loss_func
    from transformers.models.olmoe.modeling_olmoe import OlmoeSparseMoeBlock

    sizes = {"hidden_size": 12, "intermediate_size": 10, "num_experts_per_tok": chosen, "num_attention_heads": 4}
    ours = mixture(experts_per_token=chosen, router_softmax="chosen" if name == "mixtral" else "all").train()
    if name == "mixtral":
        config = transformers.MixtralConfig(**sizes, num_local_experts=5, num_key_value_heads=2)
        theirs = MixtralSparseMoeBlock(config)
    else:
        theirs = OlmoeSparseMoeBlock(transformers.OlmoeConfig(**sizes, num_experts=5, norm_topk_prob=False))
    theirs = theirs.double().eval()
    fill(theirs, ours)
    x = torch.randn(2, 7, 12, dtype=torch.float64)
    with exact():
        expected = theirs(x)
    expected = expected[0] if isinstance(expected, tuple) else expected
    torch.testing.assert_close(ours(x), expected, rtol=1e-10, atol=1e-12)
    logits = ours.router(x).flatten(0, 1)
    with exact():
        balance = load_balancing_loss_func((logits,), 5, chosen)
    z_loss = logits.logsumexp(-1).square().mean()
    torch.testing.assert_close(ours.auxiliary_loss(), 0.01 * balance + 0.001 * z_loss, rtol=1e-10, atol=0)


def test_an_attention_sink_is_that_of_gpt_oss() -> None:
    from transformers.models.gpt_oss.modeling_gpt_oss import eager_attention_forward

    torch.manual_seed(0)
    q, k, v = (torch.randn(2, heads, 6, 3, dtype=torch.float64) for heads in (4, 2, 2))
    sinks = torch.randn(4, dtype=torch.float64)
    module = nn.Module()
    module.sinks, module.num_key_value_groups = sinks, 2
    causal = torch.full((6, 6), float("-inf"), dtype=torch.float64).triu(1)[None, None]
    with exact():
        expected = eager_attention_forward(module, q, k, v, causal, scaling=0.4, dropout=0.0)[0].transpose(1, 2)
    layout = make_layout(torch.zeros(2, 6))
    found = eager(q, k, v, PreparedMask(Mask(layout, layout, causal=True), "eager"), 0.4, sinks=sinks)
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-12)
    plain = eager(q, k, v, PreparedMask(Mask(layout, layout, causal=True), "eager"), 0.4)
    assert not torch.allclose(found, plain, atol=1e-2)


def test_layer_scale_and_stochastic_depth_are_those_of_dinov2() -> None:
    from transformers.models.dinov2.modeling_dinov2 import Dinov2DropPath, Dinov2LayerScale

    wrapper = ResidualWrapper(StackConfig(**SIZE, layer_scale=0.3, drop_path=0.4, norm="none"))
    scale = Dinov2LayerScale(transformers.Dinov2Config(hidden_size=12, layerscale_value=0.3))
    x = torch.randn(9, 3, 12)
    assert torch.equal(wrapper.eval().residual_update(x, lambda h: h), scale(x))
    torch.manual_seed(0)
    found = wrapper.train().residual_update(x, lambda h: h)
    torch.manual_seed(0)
    torch.testing.assert_close(found, Dinov2DropPath(0.4).train()(scale(x)))
    assert 0 < int((found == 0).flatten(1).all(1).sum()) < 9


def test_value_residuals_are_those_of_modded_nanogpt() -> None:
    """v = (1 − λ) v + λ v₁, with the values v₁ of the first block."""
    torch.manual_seed(0)
    stack = Stack(StackConfig(**{**SIZE, "layers": 3}, value_residual="first"), name="decoder", causal=True).double()
    projected: list[Tensor] = []
    tap = Tap(record=["*.v"])
    hooks = [
        block.attention.qkv.register_forward_hook(lambda module, inputs, out: projected.append(out[..., -6:]))
        for block in stack.blocks
    ]
    with torch.no_grad():
        for layer, block in enumerate(stack.blocks):
            block.attention.value_mix.fill_(0.2 * layer + 0.1)
        stack(torch.randn(2, 5, 12, dtype=torch.float64), make_layout(torch.zeros(2, 5)), tap=tap)
    for hook in hooks:
        hook.remove()
    for layer in range(3):
        mix = 0.2 * layer + 0.1
        expected = (1 - mix) * projected[layer] + mix * projected[0]
        found = tap[f"decoder.{layer}.v"].transpose(1, 2).flatten(2)
        torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-12)
