"""The logit lens: the last layer is the model's own prediction, in every family and with every placement of norms."""

from typing import Any

import pytest
import torch
from small_networks import FAMILIES, IDS, VOCAB, make_example, make_network

from qkv.blocks import HeadConfig
from qkv.errors import UsageError
from qkv.inside import Trace, lens_logits, logit_lens, trace
from qkv.models import Network

MLM_HEAD = HeadConfig(kind="mlm", outputs=VOCAB, dense="gelu", dense_norm=True, tied=True, bias=True)


def record(network: Network, sites: Any = "*") -> Trace:
    example: Any = make_example(network.config.family)
    pair = example if network.config.family == "seq2seq" else (example, None)
    return trace(network, *pair, sites=sites)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("placement", ["pre", "post", "sandwich"])
@pytest.mark.parametrize("norm", ["layernorm", "rmsnorm"])
def test_the_last_row_is_the_model_s_prediction(family: str, placement: str, norm: str) -> None:
    choices = {"norm_placement": placement, "norm": norm, "norm_affine": "gain"}
    network = make_network(family, head=MLM_HEAD if family == "encoder" else None, **choices)
    found = record(network)
    reading = logit_lens(network, found, top_k=VOCAB)
    probs = found["logits"].softmax(-1)
    stack = found.output_stack
    assert reading.sites == (f"{stack}.0.resid_pre", f"{stack}.0.resid_post", f"{stack}.1.resid_post")
    assert torch.allclose(reading.top_probs[-1], probs.sort(descending=True).values, atol=1e-12)
    assert torch.equal(reading.target_ids, probs.argmax(-1))
    assert torch.allclose(reading.target_probs[-1], probs.amax(-1))
    assert bool((reading.target_ranks[-1] == 0).all())
    assert torch.allclose(reading.entropy[-1], torch.distributions.Categorical(probs).entropy())
    assert not torch.allclose(reading.target_probs[0], reading.target_probs[-1], atol=1e-3)


def test_an_early_row_is_the_head_of_that_layer() -> None:
    network = make_network("decoder")
    found = record(network)
    reading = logit_lens(network, found, targets=[*IDS[1:], 0])
    with torch.no_grad():
        logits = lens_logits(network, found["decoder.0.resid_post"])
        expected = network.head.project(network.decoder.norm(found["decoder.0.resid_post"]))  # type: ignore[union-attr, misc]
    assert torch.equal(logits, expected)
    chosen = logits.softmax(-1)[torch.arange(len(IDS)), torch.tensor([*IDS[1:], 0])]
    assert torch.allclose(reading.target_probs[1], chosen)
    ranks = (logits > logits[torch.arange(len(IDS)), torch.tensor([*IDS[1:], 0])][:, None]).sum(-1)
    assert torch.equal(reading.target_ranks[1], ranks)


def test_other_sites_can_be_read() -> None:
    network = make_network("seq2seq")
    reading = logit_lens(network, record(network), sites=["decoder.*.*mid"], targets=3)
    assert reading.sites == tuple(f"decoder.{i}.{site}" for i in range(2) for site in ("resid_mid", "cross_mid"))
    assert reading.target_ids.tolist() == [3] * len(reading.tokens)


def test_a_translation_is_applied_first() -> None:
    network = make_network("decoder")
    found = record(network)
    reading = logit_lens(network, found, translate=lambda site, x: found["decoder.1.resid_post"])
    assert torch.allclose(reading.target_probs[0], reading.target_probs[-1])


def test_wrong_calls_are_refused() -> None:
    network = make_network("decoder")
    found = record(network)
    for call, message in (
        (lambda: logit_lens(network, record(network, "*.z")), "record them"),
        (lambda: logit_lens(network, found, targets=[1, 2]), "2 tokens for 7 positions"),
        (lambda: logit_lens(network, found, targets=99), "99 is outside"),
        (lambda: logit_lens(make_network("encoder", head=HeadConfig(kind="tag", outputs=3)), found), "tag head"),
    ):
        with pytest.raises(UsageError, match=message):
            call()
