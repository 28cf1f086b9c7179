"""Patterns from q and k, value-weighted patterns, summaries of heads, rollout."""

from typing import Any

import pytest
import torch
from small_networks import FAMILIES, IDS, make_example, make_network
from torch import Tensor

from qkv.decode import quantize
from qkv.errors import UsageError
from qkv.inside import (
    Trace,
    attention_pattern,
    head_summaries,
    rollout,
    trace,
    value_weighted_pattern,
)
from qkv.inside.tokens import TokenList
from qkv.models import Network


def record(network: Network, sites: Any = "*", **options: Any) -> Trace:
    example: Any = make_example(network.config.family)
    pair = example if network.config.family == "seq2seq" else (example, None)
    return trace(network, *pair, sites=sites, **options)


def pattern_sites(found: Trace) -> list[str]:
    return [site for site in found if site.endswith("pattern")]


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(
    "choices",
    [
        {"position": "rotary", "kv_heads": 2},
        {"position": "alibi"},
        {"position": "t5", "score_scale": "none"},
        {"sliding_window": 2, "sliding_window_layers": (1,)},
        {"qk_norm": "head"},
    ],
)
def test_patterns_are_computed_from_q_and_k(family: str, choices: dict[str, Any]) -> None:
    network = make_network(family, **choices)
    full = record(network)
    lean = record(network, ["*q", "*k"])
    for site in pattern_sites(full):
        assert torch.allclose(attention_pattern(network, lean, site), full[site], atol=1e-12), site
        assert torch.allclose(attention_pattern(network, lean, site, [3, 0]), full[site][[3, 0]], atol=1e-12), site


def test_recorded_patterns_are_used_and_other_heads_computed() -> None:
    network = make_network("decoder")
    full = record(network)
    some = record(network, ["*q", "*k", "*pattern"], heads=[2, 1])
    for heads in ([1, 2], [2], [0, 3], [1, 0]):
        found = attention_pattern(network, some, "decoder.1.pattern", heads)
        assert torch.allclose(found, full["decoder.1.pattern"][heads], atol=1e-12)


@pytest.mark.parametrize("family", FAMILIES)
def test_value_weighted_patterns_are_norms_of_what_each_key_adds(family: str) -> None:
    """The reference adds the contributions of the keys one by one. Together they give the attention's output."""
    network = make_network(family, kv_heads=2)
    full = record(network)
    for site in pattern_sites(full):
        prefix = site.removesuffix("pattern")
        block: Any = getattr(network, site.split(".")[0]).blocks[int(site.split(".")[1])]
        attention = block.cross if "cross_" in site else block.attention
        found = value_weighted_pattern(network, full, site)
        total = (
            attention.out.bias.detach()
            .clone()
            .expand_as(full[prefix + "out" if "cross" in prefix else prefix + "attn_out"])
            .clone()
        )
        for head in range(4):
            w_o = attention.out.weight.detach()[:, head * 4 : head * 4 + 4]  # (C, D)
            for query in range(found.shape[1]):
                for key in range(found.shape[2]):
                    added = full[site][head, query, key] * (w_o @ full[prefix + "v"][head // 2, key])
                    assert found[head, query, key] == pytest.approx(float(added.norm()), abs=1e-10)
                    total[query] += added
        output = full[prefix + "out"] if "cross" in prefix else full[prefix + "attn_out"]
        assert torch.allclose(total, output, atol=1e-10), site


def make_trace(weights: Tensor, ids: list[int], *, special: tuple[int, ...] = (), cross: bool = False) -> Trace:
    tokens = TokenList(tuple(ids), tuple(map(str, ids)), tuple(i in special for i in range(len(ids))))
    if not cross:
        return Trace({"decoder.0.pattern": weights[None]}, {"decoder": tokens})
    target = TokenList(tuple(range(len(weights))), ("x",) * len(weights), (False,) * len(weights))
    return Trace({"decoder.0.cross_pattern": weights[None]}, {"encoder": tokens, "decoder": target})


def test_summaries_of_known_heads() -> None:
    ids = [7, 8, 9, 7, 8, 9]
    first, shifted = torch.zeros(6, 6), torch.zeros(6, 6)
    first[:, 0] = 1.0
    for query in range(6):
        shifted[query, max(0, query - 1)] = 1.0
    (sink,) = head_summaries(make_trace(first, ids, special=(0,)))
    assert (sink.first_token, sink.separator, sink.entropy, sink.max_weight) == (1.0, 1.0, 0.0, 1.0)
    assert sink.mean_distance == pytest.approx((0 + 1 + 2 + 3 + 4 + 5) / 6)
    (previous,) = head_summaries(make_trace(shifted, ids))
    assert previous.previous_token == 1.0
    assert previous.separator is None
    assert previous.induction == 0.0
    copies = torch.eye(6)
    for query, follower in ((3, 1), (4, 2), (5, 3)):
        copies[query] = torch.eye(6)[follower]
    (induction,) = head_summaries(make_trace(copies, ids))
    assert induction.induction == 1.0
    (uniform,) = head_summaries(make_trace(torch.full((6, 6), 1 / 6), [1, 2, 3, 4, 5, 6]))
    assert uniform.entropy == pytest.approx(torch.tensor(6.0).log().item(), abs=1e-6)
    assert uniform.induction is None


def test_alignment_of_cross_attention() -> None:
    weights = torch.tensor([[0.0, 1.0], [0.5, 0.5], [1.0, 0.0]])
    (found,) = head_summaries(make_trace(weights, [4, 5], cross=True), alignment=[(0, 1), (1, 0)])
    assert found.alignment == pytest.approx(0.75)
    assert found.mean_distance is None
    assert found.previous_token is None


def test_summaries_of_several_texts_are_means() -> None:
    a, b = make_trace(torch.eye(3), [1, 2, 3]), make_trace(torch.full((3, 3), 1 / 3), [1, 1, 3])
    mean = head_summaries([a, b])[0]
    one, other = head_summaries(a)[0], head_summaries(b)[0]
    assert mean.entropy == pytest.approx((one.entropy + other.entropy) / 2)
    assert mean.induction == other.induction  # the first text has no repeated token


@pytest.mark.parametrize("residual", ["serial", "none"])
@pytest.mark.parametrize("family", FAMILIES)
def test_rollout_distributes_all_weight_and_respects_the_mask(family: str, residual: str) -> None:
    network = make_network(family, residual=residual)
    found = rollout(network, record(network))
    if found.encoder is not None:
        assert torch.allclose(found.encoder.sum(-1), torch.ones(len(found.encoder)).double())
    if found.decoder is not None:
        total = found.decoder.sum(-1) + (0 if found.source is None else found.source.sum(-1))
        assert torch.allclose(total, torch.ones_like(total))
        assert found.decoder.triu(1).abs().max() == 0
    assert (found.source is not None) == (family == "seq2seq")


@pytest.mark.parametrize(("residual", "kept"), [("serial", 0.5), ("none", 0.0)])
def test_rollout_by_hand(residual: str, kept: float) -> None:
    network = make_network("decoder", residual=residual)
    full = record(network)
    expected = torch.eye(len(IDS), dtype=torch.float64)
    for layer in range(2):
        mean = full[f"decoder.{layer}.pattern"].mean(0)
        expected = ((1 - kept) * mean + kept * torch.eye(len(IDS))) @ expected
    found = rollout(network, full).decoder
    assert found is not None
    assert torch.allclose(found, expected)


def test_wrong_calls_are_refused() -> None:
    network = make_network("decoder")
    small = quantize(make_network("decoder", dtype=torch.float32))
    nothing = record(network, "*.z")
    for call, message in (
        (lambda: attention_pattern(network, nothing, "decoder.0.pattern"), "record one of them"),
        (lambda: attention_pattern(network, nothing, "decoder.9.pattern"), "no site"),
        (lambda: attention_pattern(network, nothing, "encoder.0.pattern"), "no site"),
        (lambda: attention_pattern(network, nothing, "decoder.0.cross_pattern"), "no cross-attention"),
        (lambda: attention_pattern(network, nothing, "decoder.0.pattern", [4]), "no head 4"),
        (lambda: value_weighted_pattern(network, record(network, "*pattern"), "decoder.0.pattern"), "decoder.0.v"),
        (lambda: head_summaries(nothing), "no patterns"),
        (lambda: value_weighted_pattern(small, record(small), "decoder.0.pattern"), "quantized"),
        (lambda: rollout(network, record(network, "*.0.pattern")), "decoder.1.pattern"),
    ):
        with pytest.raises(UsageError, match=message):
            call()
