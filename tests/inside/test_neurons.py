"""Neurons: the top examples are those of a slow search, and the vocabulary effect is the derivative of the logits."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from small_networks import FAMILIES, VOCAB, make_network

from qkv.blocks import HeadConfig
from qkv.errors import UsageError
from qkv.inside.forward import encode_examples
from qkv.inside.neurons import (
    direction_logits,
    top_examples,
    vocabulary_effect,
)
from qkv.inside.record import trace
from qkv.text import Tokenizer


def make_corpus(family: str, size: int = 11) -> list[Any]:
    generator = torch.Generator().manual_seed(1)
    lengths = torch.randint(1, 9, (size,), generator=generator).tolist()
    texts = [torch.randint(0, VOCAB, (length,), generator=generator).tolist() for length in lengths]
    return texts if family != "seq2seq" else [(text, [0, *text[::-1]]) for text in texts]


def slow_search(network: Any, corpus: list[Any], site: str, unit: int) -> list[tuple[float, int, int]]:
    """(value, example, position) of the best token of each example, the best example first."""
    found = []
    for number, example in enumerate(corpus):
        ids, target = example if isinstance(example, tuple) else (example, None)
        values = trace(network, ids, target, sites=site)[site][:, unit]
        found.append((float(values.max()), number, int(values.argmax())))
    return sorted(found, reverse=True)


@pytest.mark.parametrize("batch_size", [1, 4, 100])
@pytest.mark.parametrize("family", FAMILIES)
def test_top_examples_are_those_of_a_slow_search(family: str, batch_size: int) -> None:
    network, corpus = make_network(family), make_corpus(family)
    site = "encoder.1.mlp_post" if family == "encoder" else "decoder.1.mlp_post"
    found = top_examples(network, corpus, site, [3, 20], num_examples=4, context=2, batch_size=batch_size)
    assert list(found) == [3, 20]
    for unit, listed in found.items():
        expected = slow_search(network, corpus, site, unit)[:4]
        assert [(one.example, one.position) for one in listed.examples] == [(n, p) for _, n, p in expected]
        assert [one.value for one in listed.examples] == pytest.approx([value for value, _, _ in expected])


def test_a_window_has_the_tokens_and_activations_around_the_best_token() -> None:
    network, corpus = make_network("decoder"), make_corpus("decoder")
    site = "decoder.0.mlp_post"
    for one in top_examples(network, corpus, site, [7], num_examples=20, context=3)[7].examples:
        ids, start = corpus[one.example], max(0, one.position - 3)
        assert list(one.tokens.ids) == ids[start : one.position + 4]
        assert one.tokens.ids[one.offset] == ids[one.position]
        values = trace(network, ids, sites=site)[site][start : one.position + 4, 7]
        assert list(one.values) == pytest.approx(values.tolist(), rel=1e-5)
        assert f"[#{ids[one.position]}]" in one.text


def test_the_number_of_examples_and_the_active_fraction_are_right() -> None:
    network, corpus = make_network("decoder", feedforward="relu"), make_corpus("decoder")
    found = top_examples(network, corpus, "decoder.0.mlp_post", num_examples=50, batch_size=3)
    assert len(found) == 24
    activations = torch.cat([trace(network, ids, sites="*.0.mlp_post")["decoder.0.mlp_post"] for ids in corpus])
    for unit, listed in found.items():
        assert len(listed.examples) == len(corpus)
        assert listed.active_fraction == pytest.approx(float((activations[:, unit] > 0).double().mean()))


def test_encode_changes_the_units() -> None:
    network, corpus = make_network("decoder"), make_corpus("decoder")
    found = top_examples(network, corpus, "decoder.0.resid_post", encode=lambda x: -x[..., :2], num_examples=1)
    assert list(found) == [0, 1]
    lowest = min(
        float(trace(network, ids, sites="*.0.resid_post")["decoder.0.resid_post"][:, 0].min()) for ids in corpus
    )
    assert found[0].examples[0].value == pytest.approx(-lowest)


@pytest.mark.parametrize("norm", ["layernorm", "rmsnorm"])
@pytest.mark.parametrize("family", FAMILIES)
def test_the_effect_of_a_neuron_is_the_derivative_of_the_logits(family: str, norm: str) -> None:
    """At a residual stream that is orthogonal to the direction, the norm only divides by the standard deviation."""
    affine = "gain_bias" if norm == "layernorm" else "gain"
    network = make_network(family, dtype=torch.float32, norm=norm, norm_affine=affine)
    stack = network.output_stack
    direction = stack.blocks[1].ffn.down.weight[:, 5].detach()
    centred = direction - direction.mean() if norm == "layernorm" else direction
    x = torch.randn(16, generator=torch.Generator().manual_seed(0))
    x = x - x.mean() if norm == "layernorm" else x
    x = x - (x @ centred) / (centred @ centred) * centred
    size = x.square().mean().add(1e-5).sqrt()
    _, change = torch.func.jvp(lambda y: network.head.project(stack.norm(y)), (x,), (direction,))
    logits = direction_logits(network, direction)
    assert torch.allclose(logits, change * size, atol=1e-5)
    effect = vocabulary_effect(network, 1, 5, num_tokens=3)
    assert [one.token_id for one in effect.promoted] == logits.topk(3).indices.tolist()
    assert effect.suppressed[0].logit == pytest.approx(float(logits.min()))


def test_a_neuron_that_writes_a_token_promotes_it() -> None:
    network = make_network("decoder", head=HeadConfig(kind="lm", outputs=VOCAB, tied=True))
    with torch.no_grad():
        token = network.embedding.token.weight[17]
        network.decoder.norm.weight.fill_(1.0)
        network.decoder.blocks[0].ffn.down.weight[:, 4] = token
    assert vocabulary_effect(network, 0, 4).promoted[0].text == "#17"


def test_windows_cover_all_tokens() -> None:
    tokenizer = Tokenizer.train("byte", iter([]), vocab_size=260, special_tokens=["eos"], template="eos")
    windows = encode_examples(make_network("decoder"), tokenizer, ["abcdefg", "hi"], max_length=3)
    assert all(len(window) <= 3 for window in windows)
    assert [i for window in windows for i in window] == tokenizer.encode("abcdefg") + tokenizer.encode("hi")


@pytest.mark.parametrize(
    ("site", "units", "words"),
    [
        ("decoder.0.pattern", None, "vector for each token"),
        ("decoder.*.mlp_post", None, "vector for each token"),
        ("decoder.9.mlp_post", None, "no site"),
        ("decoder.0.mlp_post", [24], "units 0 … 23"),
    ],
)
def test_wrong_sites_and_units_are_usage_errors(site: str, units: list[int] | None, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        top_examples(make_network("decoder"), make_corpus("decoder"), site, units)


def test_the_examples_of_an_encoder_decoder_are_pairs() -> None:
    tokenizer = Tokenizer.train("byte", iter([]), vocab_size=260, special_tokens=["eos"], template="eos")
    network = make_network("seq2seq")
    network.config = replace(network.config, decoder_start_token_id=5)
    ids = tokenizer.encode("ab", add_special_tokens=False)
    assert encode_examples(network, tokenizer, [("xyz", "ab")]) == [(tokenizer.encode("xyz"), [5, *ids])]
    assert encode_examples(network, tokenizer, [("xyz", "ab")], max_length=2) == [
        (tokenizer.encode("xy")[:2], [5, ids[0]])
    ]
    decoder = make_network("decoder")
    for wrong, texts in ((network, ["xyz"]), (decoder, [("a", "b")]), (decoder, "text")):
        with pytest.raises(UsageError, match="texts"):
            encode_examples(wrong, tokenizer, texts)


def test_other_wrong_calls_are_usage_errors() -> None:
    with pytest.raises(UsageError, match="no examples"):
        top_examples(make_network("decoder"), [], "decoder.0.mlp_post")
    with pytest.raises(UsageError, match="layers 0 … 1"):
        vocabulary_effect(make_network("decoder"), 2, 0)
    with pytest.raises(UsageError, match="neurons 0 … 23"):
        vocabulary_effect(make_network("decoder"), 1, 24)
    with pytest.raises(UsageError, match="does not predict tokens"):
        vocabulary_effect(make_network("encoder", head=HeadConfig(kind="span", outputs=2)), 0, 0)
