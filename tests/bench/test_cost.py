"""What a pass must read and compute, against the books of the model and against counting by hand."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import qkv
from qkv.blocks import Mask, SequenceLayout
from qkv.models import build
from qkv.models.tables import presets
from qkv.models.tables.summary import summarise_model
from qkv_bench.cost import Cost, num_attention_pairs, prefill_cost, step_cost, weight_bytes

Make = Callable[..., qkv.Model]


@pytest.mark.parametrize("name", ["gpt2", "llama-1.1b", "qwen3-0.6b", "gpt3-175b"])
@pytest.mark.parametrize("context", [1, 500])
def test_a_step_computes_what_the_books_say(name: str, context: int) -> None:
    config = presets.find_preset(name)
    cost = step_cost(build(config, device="meta"), 1, context)
    assert cost.flops == summarise_model(config, context).flops_forward


@pytest.mark.parametrize("name", ["bert-base", "distilbert"])
def test_reading_a_text_computes_what_the_books_say_of_the_body(name: str) -> None:
    config = presets.find_preset(name)
    network = build(config, device="meta")
    head = summarise_model(config, 1).flops_forward - prefill_cost(network, 1, 1).flops
    assert head > 2 * config.stack.vocab_size * config.stack.width, "the head is not asked"
    assert prefill_cost(network, 3, 100).flops == 3 * 100 * (summarise_model(config, 100).flops_forward - head)


@pytest.mark.parametrize("name", ["gpt2", "llama-1.1b"])
def test_a_step_reads_all_weights_and_the_cache(name: str) -> None:
    config = presets.find_preset(name)
    network, books = build(config, device="meta"), summarise_model(config)
    tables = [network.embedding.position] if config.decoder.position == "learned" else []
    tables += [] if config.head.tied else [network.embedding.token]
    looked_up = sum(4 * parameter.numel() for table in tables for parameter in table.parameters())
    weights = books.weight_bytes["float32"] - looked_up
    assert step_cost(network, 0, 100).bytes == weights
    assert step_cost(network, 3, 100).bytes == weights + 3 * 100 * books.cache_bytes_per_token["float32"]


def test_a_source_costs_keys_and_not_their_projection(tiny: Make) -> None:
    network = tiny("seq2seq").network
    near, far = (step_cost(network, 2, 5, source_length=source) for source in (1, 8))
    keys, pairs = 7 * 2 * 2 * 2 * 8 * 4, 7 * 2 * 2 * 4 * 2 * 8  # more tokens, rows, layers, …
    assert far - near == Cost(2 * keys, pairs)
    projections = sum(2 * block.cross.kv.weight.numel() for block in network.decoder.blocks)
    own = step_cost(tiny("decoder").network, 1, 5).flops
    crosses = sum(2 * (b.cross.q.weight.numel() + b.cross.out.weight.numel()) for b in network.decoder.blocks)
    assert step_cost(network, 1, 5).flops == own + crosses
    source_read = prefill_cost(network, 1, 1).flops - step_cost(network, 1, 1, source_length=1).flops
    assert source_read == prefill_cost(tiny("encoder").network, 1, 1).flops + projections


def test_a_head_reads_the_last_token_alone_or_nothing(tiny: Make) -> None:
    network = tiny("decoder").network
    assert (prefill_cost(network, 1, 9) - prefill_cost(network, 1, 9, head=False)).flops == 2 * 30 * 16


def test_hypotheses_share_weights_and_cache(tiny: Make) -> None:
    network = tiny("decoder").network
    one, four = step_cost(network, 2, 10), step_cost(network, 2, 10, num_beams=4)
    assert four.bytes == one.bytes
    assert four.flops == 4 * one.flops


def test_a_window_bounds_what_is_seen(tiny: Make) -> None:
    network = tiny("decoder", sliding_window=3, sliding_window_layers=(1,)).network
    far, farther = step_cost(network, 1, 50), step_cost(network, 1, 60)
    assert (farther - far).flops == 10 * 4 * 2 * 8, "of one layer alone"
    near = tiny("decoder", sliding_window=3).network
    assert step_cost(near, 1, 50) == step_cost(near, 1, 4)


def test_shared_layers_are_read_each_time(tiny: Make) -> None:
    shared, own = (tiny("decoder", num_layer_groups=distinct).network for distinct in (1, 2))
    assert step_cost(shared, 1, 5) == step_cost(own, 1, 5)


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 12), st.integers(0, 14), st.booleans())
def test_pairs_are_those_of_the_mask(length: int, window: int, causal: bool) -> None:
    place = SequenceLayout(None, torch.arange(length)[None])
    assert num_attention_pairs(length, window, causal=causal) == int(Mask(place, place, causal, window).dense().sum())


@pytest.mark.parametrize("family", ["encoder", "decoder", "seq2seq"])
def test_int8_reads_a_quarter_of_the_matrices(tiny: Make, family: str) -> None:
    model = tiny(family)
    exact, rough = model.network, model.quantize().network
    linears = [m for m in exact.modules() if isinstance(m, torch.nn.Linear)]
    numbers, outputs = sum(m.weight.numel() for m in linears), sum(m.out_features for m in linears)
    biases = sum(m.bias.numel() for m in linears if m.bias is not None)
    assert weight_bytes(exact) - weight_bytes(rough) == 3 * numbers - 12 * outputs + 4 * biases
    if family != "encoder":
        assert step_cost(rough, 1, 5).bytes < step_cost(exact, 1, 5).bytes
        assert step_cost(rough, 1, 5).flops == step_cost(exact, 1, 5).flops


def test_int4_reads_five_bits_for_each_weight() -> None:
    stack = qkv.StackConfig(vocab_size=50, width=64, layers=1, heads=1, ffn_width=128, bias="none")
    model = qkv.new(qkv.Config(decoder=stack, head=qkv.HeadConfig(kind="lm", outputs=50)))
    exact, rough = model.network, model.quantize("int4").network
    numbers = sum(m.weight.numel() for m in exact.decoder.modules() if isinstance(m, torch.nn.Linear))
    head = 4 * 50 * 64 - (50 * 64 + 12 * 50)  # the head is in int8
    assert weight_bytes(exact) - weight_bytes(rough) == 4 * numbers - numbers * 5 // 8 + head
    assert step_cost(rough, 1, 5).bytes < step_cost(model.quantize().network, 1, 5).bytes
    assert step_cost(rough, 1, 5).flops == step_cost(exact, 1, 5).flops


def test_tied_weights_are_counted_once_in_memory() -> None:
    stack: dict[str, Any] = {"vocab_size": 50, "width": 8, "layers": 1, "heads": 1, "ffn_width": 8}
    sizes = []
    for tied in (True, False):
        head = qkv.HeadConfig(kind="lm", outputs=50, tied=tied)
        sizes.append(weight_bytes(qkv.new(qkv.Config(decoder=qkv.StackConfig(**stack), head=head)).network))
    assert sizes[1] - sizes[0] == 4 * 50 * 8


@pytest.mark.parametrize("attention", ["additive", "none"])
@pytest.mark.parametrize("kind", ["rnn", "lstm"])
def test_recurrent_models_cost_what_the_books_say(tiny: Make, kind: str, attention: str) -> None:
    choices = {"block": kind, "heads": 0, "ffn_width": 0, "position": "none"}
    config = tiny("decoder", **choices).config
    network = build(config, device="meta")
    assert step_cost(network, 1, 50).flops == summarise_model(config, 7).flops_forward
    assert step_cost(network, 1, 50) == step_cost(network, 1, 900), "the state does not grow"
    one, many = prefill_cost(network, 1, 1, head=False), prefill_cost(network, 2, 9, head=False)
    assert many == Cost(one.bytes, 18 * one.flops)

    config = tiny("seq2seq", **choices, recurrent_attention=attention).config
    network = build(config, device="meta")
    encoder = prefill_cost(build(tiny("encoder", **choices).config, device="meta"), 1, 9).flops
    once = 2 * network.decoder.initial.weight.numel()
    assert prefill_cost(network, 1, 9).flops - once == encoder + (
        9 * _key_flops(network) + step_cost(network, 1, 1, source_length=9).flops
    )
    token = step_cost(network, 1, 1, source_length=9).flops + _key_flops(network) + encoder // 9
    assert token == summarise_model(config, 9).flops_forward


def _key_flops(network: Any) -> int:
    first = network.decoder.layers[0]
    return 2 * first.key.weight.numel() if hasattr(first, "key") else 0
