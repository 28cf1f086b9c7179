"""Presets: what is published about each, and that none of them starts with two layers alike."""

from dataclasses import replace
from itertools import combinations

import pytest
import torch

from qkv.blocks import Inputs
from qkv.errors import UsageError
from qkv.models import Config, build
from qkv.models.tables import ARCHITECTURES
from qkv.models.tables.presets import PRESETS, find_preset

# name: layers of each stack, width, heads, feed-forward width, vocabulary
PUBLISHED = {
    "transformer-base": ((6, 6), 512, 8, 2048, 37_000),
    "transformer-big": ((6, 6), 1024, 16, 4096, 37_000),
    "bert-tiny": ((2,), 128, 2, 512, 30_522),
    "bert-base": ((12,), 768, 12, 3072, 30_522),
    "bert-large": ((24,), 1024, 16, 4096, 30_522),
    "roberta-base": ((12,), 768, 12, 3072, 50_265),
    "distilbert": ((6,), 768, 12, 3072, 30_522),
    "modernbert-base": ((22,), 768, 12, 1152, 50_368),
    "esm2-8m": ((6,), 320, 20, 1280, 33),
    "esm2-35m": ((12,), 480, 20, 1920, 33),
    "esm2-150m": ((30,), 640, 20, 2560, 33),
    "esm2-650m": ((33,), 1280, 20, 5120, 33),
    "esm2-3b": ((36,), 2560, 40, 10_240, 33),
    "gpt2": ((12,), 768, 12, 3072, 50_257),
    "gpt2-medium": ((24,), 1024, 16, 4096, 50_257),
    "gpt2-large": ((36,), 1280, 20, 5120, 50_257),
    "gpt2-xl": ((48,), 1600, 25, 6400, 50_257),
    "gpt3-175b": ((96,), 12_288, 96, 49_152, 50_257),
    "t5-small": ((6, 6), 512, 8, 2048, 32_128),
    "t5-base": ((12, 12), 768, 12, 3072, 32_128),
    "t5-v1.1-small": ((8, 8), 512, 6, 1024, 32_128),
    "t5-v1.1-base": ((12, 12), 768, 12, 2048, 32_128),
    "bart-base": ((6, 6), 768, 12, 3072, 50_265),
    "marian": ((6, 6), 512, 8, 2048, 58_101),
    "llama-1.1b": ((22,), 2048, 32, 5632, 32_000),
    "llama-3.1-8b": ((32,), 4096, 32, 14_336, 128_256),
    "mistral-7b": ((32,), 4096, 32, 14_336, 32_000),
    "qwen2-0.5b": ((24,), 896, 14, 4864, 151_936),
    "qwen2-7b": ((28,), 3584, 28, 18_944, 152_064),
    "qwen3-0.6b": ((28,), 1024, 16, 3072, 151_936),
    "qwen3-8b": ((36,), 4096, 32, 12_288, 151_936),
}


def test_every_preset_is_held_against_what_is_published() -> None:
    assert set(PUBLISHED) == set(PRESETS)


@pytest.mark.parametrize("name", sorted(PRESETS))
def test_a_preset_has_its_published_size(name: str) -> None:
    config = find_preset(name)
    layers = tuple(stack.layers for stack in (config.encoder, config.decoder) if stack is not None)
    stack = config.stack
    assert (layers, stack.width, stack.heads, stack.ffn_width, stack.vocab_size) == PUBLISHED[name]


@pytest.mark.parametrize("name", sorted(PRESETS))
def test_the_layout_that_a_preset_names_is_known(name: str) -> None:
    assert find_preset(name).architecture in {"", *ARCHITECTURES}


def test_an_unknown_preset_is_refused_with_the_nearest() -> None:
    with pytest.raises(UsageError, match=r"unknown preset 'gpt-2'; did you mean 'gpt2'\?"):
        find_preset("gpt-2")


def test_grouped_heads_and_windows_are_where_they_were_published() -> None:
    kv = {
        name: find_preset(name).stack.kv_heads
        for name in ("llama-1.1b", "llama-3.1-8b", "mistral-7b", "qwen2-7b", "gpt2")
    }
    assert kv == {"llama-1.1b": 4, "llama-3.1-8b": 8, "mistral-7b": 8, "qwen2-7b": 4, "gpt2": 12}
    assert find_preset("mistral-7b").stack.sliding_window == 4095, "itself and 4,095 before it"
    modern = find_preset("modernbert-base").stack
    assert [modern.window_of(layer) for layer in range(4)] == [0, 64, 64, 0]


def test_a_family_may_be_made_at_another_size() -> None:
    config = find_preset("gpt2", n_embd=384, n_layer=6, n_head=6, vocab_size=65, n_positions=256)
    assert config.stack == replace(
        find_preset("gpt2").stack,
        vocab_size=65,
        width=384,
        layers=6,
        heads=6,
        kv_heads=6,
        ffn_width=1536,
        max_positions=256,
        num_layer_groups=6,
    )


# ── Trap 12 ──────────────────────────────────────────────────────────────────────────────────────────────────────


def shrunk(config: Config) -> Config:
    """The same choices at a size that a test can build."""
    small = {"vocab_size": 40, "width": 16, "layers": 3, "heads": 4, "kv_heads": 2, "head_dim": 4, "ffn_width": 24}
    small |= {"num_layer_groups": 0, "max_positions": 32, "sliding_window_layers": ()}
    stacks = {
        name: replace(getattr(config, name), **small) if getattr(config, name) else None
        for name in ("encoder", "decoder")
    }
    return replace(config, head=replace(config.head, outputs=40), **stacks)


SMALL = {
    "transformer": find_preset("transformer-base"),
    "bert": find_preset("bert-base"),
    "roberta": find_preset("roberta-base"),
    "distilbert": find_preset("distilbert"),
    "modernbert": find_preset("modernbert-base"),
    "gpt2": find_preset("gpt2"),
    "t5": find_preset("t5-small"),
    "t5-v1.1": find_preset("t5-v1.1-small"),
    "bart": find_preset("bart-base"),
    "marian": find_preset("marian"),
    "llama": find_preset("llama-1.1b"),
    "mistral": find_preset("mistral-7b"),
    "qwen2": find_preset("qwen2-0.5b"),
    "qwen3": find_preset("qwen3-0.6b"),
}


@pytest.mark.parametrize("name", SMALL)
def test_no_two_layers_of_a_preset_start_equal(name: str) -> None:
    torch.manual_seed(0)
    network = build(shrunk(SMALL[name]))
    blocks = [
        block for stack in ("encoder", "decoder") for block in getattr(getattr(network, stack, None), "blocks", [])
    ]
    assert len(blocks) in (3, 6)
    for one, other in combinations(blocks, 2):
        for key, weight in one.state_dict().items():
            if weight.dim() == 2 and key in other.state_dict():
                assert not torch.equal(weight, other.state_dict()[key]), key


@pytest.mark.parametrize("name", SMALL)
def test_a_preset_runs(name: str) -> None:
    """Every family of choices makes a network whose outputs are finite and have the vocabulary's width."""
    torch.manual_seed(0)
    network = build(shrunk(SMALL[name])).eval()
    ids = torch.randint(0, 40, (2, 7))
    with torch.no_grad():
        out = network(Inputs(ids, source=Inputs(ids))) if SMALL[name].family == "seq2seq" else network(ids)
    assert out.shape == (2, 7, 40)
    assert out.isfinite().all()
    assert float(out.std()) > 0
