"""Direct logit attribution: contributions add up to the logit, and each is what its component really contributes."""

from typing import Any

import pytest
import torch
from small_networks import FAMILIES, VOCAB, make_example, make_network

from qkv.blocks import HeadConfig
from qkv.errors import UsageError
from qkv.inside import ATTRIBUTION_SITES, Trace, logit_attribution, trace
from qkv.models import Network

TIED = HeadConfig(kind="lm", outputs=VOCAB, tied=True, scale="rsqrt")
BIASED = HeadConfig(kind="lm", outputs=VOCAB, bias=True)


def mlm(activation: str, **choices: Any) -> HeadConfig:
    return HeadConfig(kind="mlm", outputs=VOCAB, dense=activation, dense_norm=True, bias=True, **choices)  # type: ignore[arg-type]


def record(network: Network, sites: Any = ATTRIBUTION_SITES) -> Trace:
    example: Any = make_example(network.config.family)
    pair = example if network.config.family == "seq2seq" else (example, None)
    return trace(network, *pair, sites=sites)


CASES: list[tuple[str, HeadConfig | None, dict[str, Any]]] = [
    ("decoder", None, {"norm_placement": "pre"}),
    ("decoder", TIED, {"norm_placement": "pre", "norm": "rmsnorm", "norm_affine": "gain", "kv_heads": 2}),
    ("decoder", BIASED, {"norm_placement": "post"}),
    ("decoder", None, {"norm_placement": "post", "norm": "rmsnorm", "norm_affine": "gain", "bias": "none"}),
    ("decoder", None, {"norm_placement": "sandwich"}),
    ("decoder", None, {"norm_placement": "sandwich", "norm": "rmsnorm", "norm_affine": "none"}),
    ("decoder", None, {"norm": "none", "norm_placement": "post"}),
    ("decoder", None, {"residual": "parallel", "position": "rotary"}),
    ("decoder", None, {"residual": "parallel", "norm_placement": "sandwich", "feedforward": "swiglu"}),
    ("decoder", None, {"embedding_norm": "replaces_first", "head_dim": 6}),
    ("decoder", None, {"num_layer_groups": 1, "layers": 3, "norm_placement": "post"}),
    ("encoder", mlm("gelu"), {"norm_placement": "post"}),
    ("encoder", mlm("relu", tied=True), {"norm_placement": "post", "embedding_width": 8}),
    ("encoder", mlm("tanh", dense_bias=False), {"norm_placement": "pre"}),
    ("seq2seq", None, {"norm_placement": "pre"}),
    ("seq2seq", BIASED, {"norm_placement": "post"}),
    (
        "seq2seq",
        TIED,
        {"norm_placement": "pre", "norm": "rmsnorm", "norm_affine": "gain", "position": "t5", "bias": "none"},
    ),
    ("seq2seq", None, {"norm_placement": "sandwich", "kv_heads": 2}),
]


@pytest.mark.parametrize(("family", "head", "choices"), CASES)
def test_contributions_add_up_to_the_logits(family: str, head: HeadConfig | None, choices: dict[str, Any]) -> None:
    network = make_network(family, head=head, **choices)
    found = record(network)
    for position in (0, 3, -1):
        attribution = logit_attribution(network, found, position=position, outputs=list(range(VOCAB)))
        total = attribution.values.sum(0)
        assert torch.allclose(total, found["logits"][position], atol=1e-10), (total, found["logits"][position])
        assert torch.equal(attribution.logits, found["logits"][position])
    layers = network.config.stack.layers
    num_heads = 4 * layers * (2 if family == "seq2seq" else 1)
    assert len(attribution.components) == num_heads + layers + 2
    assert attribution.heads(5).shape == (layers, 4)
    assert attribution.mlps().shape == (layers,)


def test_a_component_s_contribution_is_its_vector_through_the_frozen_norm() -> None:
    """By hand, for a pre-norm decoder with layer norms."""
    network: Any = make_network("decoder")
    found = record(network, "*")
    attribution = logit_attribution(network, found, position=4, outputs=[7, 9])
    x = found["decoder.1.resid_post"][4]
    norm, w_u = network.decoder.norm, network.head.out.weight.detach()[[7, 9]]
    sigma = (x.var(unbiased=False) + norm.eps).sqrt()

    def through(vector: torch.Tensor) -> torch.Tensor:
        return w_u @ ((vector - vector.mean()) / sigma * norm.weight.detach())

    by_name = {
        component.name: values for component, values in zip(attribution.components, attribution.values, strict=True)
    }
    assert torch.allclose(by_name["embedding"], through(found["decoder.0.resid_pre"][4]), atol=1e-12)
    assert torch.allclose(by_name["L1 mlp"], through(found["decoder.1.mlp_out"][4]), atol=1e-12)
    w_o = network.decoder.blocks[0].attention.out.weight.detach()[:, 8:12]
    assert torch.allclose(by_name["L0 head 2"], through(w_o @ found["decoder.0.z"][2, 4]), atol=1e-12)
    assert torch.allclose(attribution.heads(1)[0, 2], by_name["L0 head 2"][1])
    assert torch.equal(attribution.mlps()[1], by_name["L1 mlp"][0])


@pytest.mark.parametrize("site", ["decoder.0.resid_pre", "decoder.0.z", "decoder.1.mlp_out"])
def test_wrong_activations_do_not_add_up(site: str) -> None:
    """Negative control: if one component were wrong, the sum would not be the logit."""
    network: Any = make_network("decoder")
    found = record(network)
    other = Trace({**found.values, site: found[site] * 1.1}, found.tokens)
    attribution = logit_attribution(network, other, outputs=[3])
    assert abs(float(attribution.values.sum()) - float(attribution.logits[0])) > 1e-3


@pytest.mark.parametrize("family", FAMILIES)
def test_single_precision(family: str) -> None:
    network = make_network(family, dtype=torch.float32)
    found = record(network)
    attribution = logit_attribution(network, found)
    assert attribution.outputs == (int(found["logits"][-1].argmax()),)
    assert float(attribution.values.sum()) == pytest.approx(float(attribution.logits[0]), abs=1e-4)


def test_wrong_calls_are_refused() -> None:
    network = make_network("decoder")
    found = record(network)
    no_skip = make_network("decoder", residual="none")
    for call, message in (
        (lambda: logit_attribution(network, record(network, "*.z")), "no logits"),
        (lambda: logit_attribution(network, record(network, ["*.z", "logits"])), "decoder.0.resid_pre"),
        (lambda: logit_attribution(network, found, position=7), "7 positions"),
        (lambda: logit_attribution(network, found, outputs=[40]), "40 is outside"),
        (lambda: logit_attribution(network, found).heads(cross=True), "no cross-attention"),
        (lambda: logit_attribution(no_skip, record(no_skip)), 'residual = "none"'),
        (lambda: logit_attribution(make_network("encoder", head=HeadConfig(kind="tag", outputs=2)), found), "tag"),
    ):
        with pytest.raises(UsageError, match=message):
            call()
