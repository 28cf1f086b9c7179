"""Parity with TransformerLens on GPT-2-shaped random weights: every site that both have, the logit lens, direct logit
attribution and patching. TransformerLens 3.9 has `HookedTransformer`; later versions do not.

    pip install "transformer-lens==3.9"
"""

from typing import Any

import pytest
import torch
from torch import Tensor

from qkv.blocks import HeadConfig, StackConfig
from qkv.blocks.parts import layer_sites
from qkv.inside import (
    ATTRIBUTION_SITES,
    EditTap,
    Trace,
    change,
    lens_logits,
    logit_attribution,
    patch,
    trace,
    zero_ablate,
)
from qkv.models import Config, Decoder, build

lens = pytest.importorskip(
    "transformer_lens", reason="transformer-lens is not installed (pip install transformer-lens==3.9)"
)
if not hasattr(lens, "HookedTransformer"):
    pytest.skip("this transformer-lens has no HookedTransformer; version 3.9 has", allow_module_level=True)

LAYERS, WIDTH, HEADS, VOCAB, LENGTH = 12, 768, 12, 1000, 20  # GPT-2 small, with a smaller vocabulary
TOLERANCE = 1e-4

HOOKS = {
    "resid_pre": "hook_resid_pre",
    "q": "attn.hook_q",
    "k": "attn.hook_k",
    "v": "attn.hook_v",
    "scores": "attn.hook_attn_scores",
    "pattern": "attn.hook_pattern",
    "z": "attn.hook_z",
    "attn_out": "hook_attn_out",
    "resid_mid": "hook_resid_mid",
    "mlp_pre": "mlp.hook_pre",
    "mlp_post": "mlp.hook_post",
    "mlp_out": "hook_mlp_out",
    "resid_post": "hook_resid_post",
}
"""Our site → TransformerLens's hook."""


@pytest.fixture(scope="module")
def ids() -> list[int]:
    return torch.randint(VOCAB, (LENGTH,), generator=torch.Generator().manual_seed(1)).tolist()


@pytest.fixture(scope="module")
def other_ids() -> list[int]:
    return torch.randint(VOCAB, (LENGTH,), generator=torch.Generator().manual_seed(2)).tolist()


@pytest.fixture(scope="module")
def network() -> Decoder:
    size = {"vocab_size": VOCAB, "width": WIDTH, "layers": LAYERS, "heads": HEADS, "ffn_width": 4 * WIDTH}
    stack = StackConfig(**size, position="learned", max_positions=64, feedforward="gelu_tanh", init_std=0.05)  # type: ignore[arg-type]
    config = Config(decoder=stack, head=HeadConfig(kind="lm", outputs=VOCAB, bias=True))
    torch.manual_seed(0)
    made = build(config).eval().requires_grad_(False)
    for parameter in made.parameters():
        if parameter.dim() == 1:
            parameter.add_(0.1 * torch.randn_like(parameter))
    assert isinstance(made, Decoder)
    return made


@pytest.fixture(scope="module")
def hooked(network: Decoder) -> Any:
    """The same weights as a `HookedTransformer`."""
    config = lens.HookedTransformerConfig(
        n_layers=LAYERS,
        d_model=WIDTH,
        n_heads=HEADS,
        d_head=WIDTH // HEADS,
        d_mlp=4 * WIDTH,
        n_ctx=64,
        d_vocab=VOCAB,
        act_fn="gelu_new",
        normalization_type="LN",
        device="cpu",
        init_weights=False,
    )
    model = lens.HookedTransformer(config)
    state = {name: value for name, value in model.state_dict().items() if name.endswith(("mask", "IGNORE"))}
    state |= {
        "embed.W_E": network.embedding.token.weight,
        "pos_embed.W_pos": network.embedding.position.weight,  # type: ignore[union-attr]
        "ln_final.w": network.decoder.norm.weight,  # type: ignore[union-attr]
        "ln_final.b": network.decoder.norm.bias,  # type: ignore[union-attr]
        "unembed.W_U": network.head.out.weight.T,  # type: ignore[union-attr]
        "unembed.b_U": network.head.out.bias,  # type: ignore[union-attr]
    }
    for layer in range(LAYERS):
        state |= {
            f"blocks.{layer}.{name}": value for name, value in convert_block(network.decoder.blocks[layer]).items()
        }
    model.load_state_dict(state)
    return model.eval()


def convert_block(block: Any) -> dict[str, Tensor]:
    weights, biases = block.attention.qkv.weight.chunk(3), block.attention.qkv.bias.chunk(3)
    converted = {
        "ln1.w": block.attention_sub.norm.weight,
        "ln1.b": block.attention_sub.norm.bias,
        "ln2.w": block.ffn_sub.norm.weight,
        "ln2.b": block.ffn_sub.norm.bias,
        "attn.W_O": block.attention.out.weight.T.reshape(HEADS, WIDTH // HEADS, WIDTH),
        "attn.b_O": block.attention.out.bias,
        "mlp.W_in": block.ffn.up.weight.T,
        "mlp.b_in": block.ffn.up.bias,
        "mlp.W_out": block.ffn.down.weight.T,
        "mlp.b_out": block.ffn.down.bias,
    }
    for name, weight, bias in zip("QKV", weights, biases, strict=True):
        converted[f"attn.W_{name}"] = weight.view(HEADS, WIDTH // HEADS, WIDTH).transpose(1, 2)
        converted[f"attn.b_{name}"] = bias.view(HEADS, WIDTH // HEADS)
    return converted


@pytest.fixture(scope="module")
def cache(hooked: Any, ids: list[int]) -> Any:
    with torch.no_grad():
        return hooked.run_with_cache(torch.tensor([ids]))[1]


@pytest.fixture(scope="module")
def recorded(network: Decoder, ids: list[int]) -> Trace:
    return trace(network, ids, sites="*")


def theirs(cache: Any, layer: int, site: str) -> Tensor:
    """Their value in our layout. Theirs has (B, T, H, D), ours (H, T, D)."""
    value: Tensor = cache[f"blocks.{layer}.{HOOKS[site]}"][0]
    return value.transpose(0, 1) if site in ("q", "k", "v", "z") else value


def assert_close(ours: Tensor, their: Tensor, name: str) -> None:
    assert ours.shape == their.shape, name
    torch.testing.assert_close(ours, their, atol=TOLERANCE, rtol=0, msg=lambda text: f"{name}: {text}")


@pytest.mark.parametrize("site", HOOKS)
def test_every_shared_site(site: str, recorded: Trace, cache: Any) -> None:
    for layer in range(LAYERS):
        assert_close(recorded[f"decoder.{layer}.{site}"], theirs(cache, layer, site), f"{layer}.{site}")


def test_our_sites_are_all_compared() -> None:
    """A new site of the tap must be added to the table, or be named here as one that they do not have."""
    config = StackConfig(vocab_size=1, width=8, layers=1, heads=1, ffn_width=8)
    assert set(layer_sites(config, 0, cross=False)) == set(HOOKS)


def test_the_final_norm_and_the_logits(recorded: Trace, cache: Any, hooked: Any, ids: list[int]) -> None:
    with torch.no_grad():
        logits = hooked(torch.tensor([ids]))[0]
    assert_close(recorded["logits"], logits, "logits")
    assert_close(recorded["decoder.final"], cache["unembed.hook_in"][0], "final")


def test_another_text_differs(recorded: Trace, hooked: Any, other_ids: list[int]) -> None:
    """Negative control: the tolerance is far below the differences between texts."""
    with torch.no_grad():
        cache = hooked.run_with_cache(torch.tensor([other_ids]))[1]
    for site in HOOKS:
        with pytest.raises(AssertionError):
            assert_close(recorded[f"decoder.3.{site}"], theirs(cache, 3, site), site)


def test_the_logit_lens(network: Decoder, recorded: Trace, hooked: Any, cache: Any) -> None:
    """Theirs: the accumulated residual stream, each layer with its own norm scale, times W_U."""
    with torch.no_grad():
        for layer in range(LAYERS):
            residual = cache[f"blocks.{layer}.hook_resid_post"]
            expected = hooked.unembed(hooked.ln_final(residual))[0]
            assert_close(lens_logits(network, recorded[f"decoder.{layer}.resid_post"]), expected, f"layer {layer}")


def test_direct_logit_attribution(network: Decoder, ids: list[int], hooked: Any, cache: Any) -> None:
    tokens = [5, 123, 999]
    ours = logit_attribution(network, trace(network, ids, sites=ATTRIBUTION_SITES), outputs=tokens)
    with torch.no_grad():
        heads = cache.stack_head_results(layer=LAYERS, pos_slice=-1, apply_ln=True)[:, 0]  # (L · H, C)
        names = [f"{layer}_mlp_out" for layer in range(LAYERS)]
        parts, labels = cache.decompose_resid(layer=LAYERS, pos_slice=-1, apply_ln=True, return_labels=True)
        mlps = torch.stack([parts[labels.index(name), 0] for name in names])
        directions = hooked.ln_final.w[:, None] * hooked.W_U[:, tokens]  # their apply_ln leaves out the gain
    for column in range(len(tokens)):
        assert_close(ours.heads(column).flatten().float(), heads @ directions[:, column], "heads")
        assert_close(ours.mlps(column).float(), mlps @ directions[:, column], "feed-forwards")


def test_ablating_a_head(network: Decoder, hooked: Any, ids: list[int]) -> None:
    def zero(z: Tensor, hook: Any) -> Tensor:
        z[:, :, 5] = 0.0
        return z

    with torch.no_grad():
        expected = hooked.run_with_hooks(torch.tensor([ids]), fwd_hooks=[("blocks.3.attn.hook_z", zero)])
        ours = network(torch.tensor([ids]), tap=EditTap([zero_ablate("decoder.3.z", heads=[5])]))
    assert_close(ours, expected, "ablated")


@pytest.mark.parametrize("site", ["resid_pre", "z", "mlp_post", "pattern", "scores", "k"])
def test_patching_from_another_run(
    site: str, network: Decoder, hooked: Any, cache: Any, ids: list[int], other_ids: list[int], recorded: Trace
) -> None:
    hook_name, position = f"blocks.2.{HOOKS[site]}", 7

    def patched(value: Tensor, hook: Any) -> Tensor:
        if site in ("pattern", "scores"):
            value[:, :, position] = cache[hook_name][:, :, position]
        else:
            value[:, position] = cache[hook_name][:, position]
        return value

    with torch.no_grad():
        expected = hooked.run_with_hooks(torch.tensor([other_ids]), fwd_hooks=[(hook_name, patched)])
        edit = patch(f"decoder.2.{site}", recorded, positions=[position])
        assert_close(network(torch.tensor([other_ids]), tap=EditTap([edit])), expected, site)
        unchanged = network(torch.tensor([other_ids]), tap=EditTap([change("decoder.2.z", lambda z: z)]))
    with pytest.raises(AssertionError):
        assert_close(unchanged, expected, site)


# ── Another architecture ────────────────────────────────────────────────────────────────────────────────────────────

LLAMA = {"width": 64, "layers": 3, "heads": 8, "kv_heads": 2, "ffn_width": 96}
LLAMA_HOOKS = {**HOOKS, "q": "attn.hook_rot_q", "k": "attn.hook_rot_k"}


def test_every_shared_site_of_a_llama_shaped_model(ids: list[int]) -> None:
    """Rotary positions, grouped key/value heads, RMS norm and SwiGLU, with random weights."""
    stack = StackConfig(
        vocab_size=VOCAB,
        position="rotary",
        norm="rmsnorm",
        norm_affine="gain",
        feedforward="swiglu",
        bias="none",
        init_std=0.2,
        **LLAMA,  # type: ignore[arg-type]
    )
    torch.manual_seed(0)
    network = build(Config(decoder=stack, head=HeadConfig(kind="lm", outputs=VOCAB))).eval().requires_grad_(False)
    assert isinstance(network, Decoder)
    for parameter in network.parameters():
        if parameter.dim() == 1:
            parameter.add_(0.1 * torch.randn_like(parameter))
    config = lens.HookedTransformerConfig(
        n_layers=3,
        d_model=64,
        n_heads=8,
        n_key_value_heads=2,
        d_head=8,
        d_mlp=96,
        n_ctx=64,
        d_vocab=VOCAB,
        act_fn="silu",
        gated_mlp=True,
        normalization_type="RMS",
        final_rms=True,
        positional_embedding_type="rotary",
        rotary_dim=8,
        rotary_adjacent_pairs=False,
        device="cpu",
        init_weights=False,
    )
    model = lens.HookedTransformer(config)
    state = {
        name: torch.zeros_like(value) for name, value in model.state_dict().items() if ".b_" in name or "_b_" in name
    }
    state |= {
        name: value for name, value in model.state_dict().items() if name.endswith(("mask", "IGNORE", "sin", "cos"))
    }
    state |= {
        "embed.W_E": network.embedding.token.weight,
        "ln_final.w": network.decoder.norm.weight,  # type: ignore[union-attr]
        "unembed.W_U": network.head.out.weight.T,  # type: ignore[union-attr]
    }
    for layer in range(3):
        block: Any = network.decoder.blocks[layer]
        q, k, v = block.attention.qkv.weight.split([64, 16, 16])
        gate, value = block.ffn.up.weight.chunk(2)
        parts = {
            "ln1.w": block.attention_sub.norm.weight,
            "ln2.w": block.ffn_sub.norm.weight,
            "attn.W_Q": q.view(8, 8, 64).transpose(1, 2),
            "attn._W_K": k.view(2, 8, 64).transpose(1, 2),
            "attn._W_V": v.view(2, 8, 64).transpose(1, 2),
            "attn.W_O": block.attention.out.weight.T.reshape(8, 8, 64),
            "mlp.W_gate": gate.T,
            "mlp.W_in": value.T,
            "mlp.W_out": block.ffn.down.weight.T,
        }
        state |= {f"blocks.{layer}.{name}": tensor for name, tensor in parts.items()}
    model.load_state_dict(state)
    recorded = trace(network, ids, sites="*")
    with torch.no_grad():
        logits, cache = model.eval().run_with_cache(torch.tensor([ids]))
    assert_close(recorded["logits"], logits[0], "logits")
    for layer in range(3):
        for site, hook in LLAMA_HOOKS.items():
            their = cache[f"blocks.{layer}.{hook}"][0]
            if site in ("q", "k", "v", "z"):
                their = their.transpose(0, 1)
            if site == "mlp_pre":  # ours has gate and value in one tensor
                their = torch.cat([their, cache[f"blocks.{layer}.mlp.hook_pre_linear"][0]], dim=-1)
            assert_close(recorded[f"decoder.{layer}.{site}"], their, f"{layer}.{site}")
