"""The books: parameters against real networks and published totals, FLOPs against torch's own counter, cache bytes."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

from qkv.blocks import HeadConfig, Inputs
from qkv.blocks.mask import Mask, make_layout
from qkv.blocks.position import ScoreBias
from qkv.models import Config, build
from qkv.models.tables.presets import PRESETS, find_preset
from qkv.models.tables.summary import summarise_model

Make = Callable[..., Any]
FAMILIES = ["encoder", "decoder", "seq2seq"]

# Parameters as the published checkpoints have them, in the class that the preset's head is.
PUBLISHED = {
    "gpt2": 124_439_808,
    "gpt2-medium": 354_823_168,
    "gpt2-large": 774_030_080,
    "gpt2-xl": 1_557_611_200,
    "bert-base": 110_106_428,
    "bert-large": 336_226_108,
    "roberta-base": 124_697_433,
    "distilbert": 66_985_530,
    "modernbert-base": 149_655_232,
    "t5-small": 60_506_624,
    "t5-base": 222_903_552,
    "t5-v1.1-small": 76_961_152,
    "t5-v1.1-base": 247_577_856,
    "bart-base": 139_420_416 + 50_265,  # the output bias, which transformers keeps as a buffer
    "llama-1.1b": 1_100_048_384,
    "llama-3.1-8b": 8_030_261_248,
    "mistral-7b": 7_241_732_096,
    "qwen2-0.5b": 494_032_768,
    "qwen2-7b": 7_615_616_512,
    "qwen3-0.6b": 596_049_920,
    "qwen3-8b": 8_190_735_360,
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_preset_has_its_published_number_of_parameters(name: str) -> None:
    assert summarise_model(find_preset(name)).total == PUBLISHED[name]


@pytest.mark.parametrize(("name", "millions"), [("transformer-base", 65), ("transformer-big", 213)])
def test_the_2017_models_are_as_large_as_their_paper_rounds_them(name: str, millions: int) -> None:
    assert summarise_model(find_preset(name)).total == pytest.approx(millions * 1e6, rel=0.04)


def test_gpt3_has_the_figures_of_its_paper() -> None:
    books = summarise_model(find_preset("gpt3-175b"))
    assert books.layers == {"decoder": 96}
    assert books.heads == {"decoder": 96}
    assert books.parameters["mlp"] == pytest.approx(116e9, rel=0.001)
    assert books.total == pytest.approx(175e9, rel=0.003)
    assert books.parameters["mlp"] == 96 * (2 * 4 * 12_288**2 + 5 * 12_288)
    assert books.weight_bytes["bfloat16"] == 2 * books.total


class Allocations(TorchDispatchMode):
    """Notes the largest tensor that any operation makes outside the meta device."""

    largest = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if isinstance(out, torch.Tensor) and not out.is_meta:
            self.largest = max(self.largest, out.numel())
        return out


def test_no_weight_is_allocated(config: Make) -> None:
    with Allocations() as books:
        summarise_model(config("seq2seq"))
    with Allocations() as network:
        build(config("seq2seq"))
    assert books.largest == 0
    assert network.largest >= 40 * 16, "the negative control: building for real is noticed"


# ── Against real networks ────────────────────────────────────────────────────────────────────────────────────────

CHOICES: list[dict[str, Any]] = [
    {},
    {"position": "learned", "position_offset": 2, "token_types": 2, "embedding_norm": "extra"},
    {"position": "t5", "bias": "none", "norm": "rmsnorm"},
    {"position": "rotary", "kv_heads": 2, "feedforward": "swiglu", "qk_norm": "head", "head_dim": 6},
    {"embedding_width": 8, "num_layer_groups": 1, "layers": 3},
    {"norm_placement": "sandwich", "norm_affine": "gain", "feedforward": "geglu_tanh"},
    {"norm_placement": "post", "norm_affine": "none", "bias": "qkv"},
    {"embedding_norm": "replaces_first", "bias": "attention", "position": "alibi"},
    {"norm": "none", "norm_placement": "sandwich", "embedding_norm": "extra", "residual": "none"},
]


def by_hand(network: nn.Module) -> dict[str, int]:
    """Parameters by what kind of module holds them, each counted once."""
    counts = dict.fromkeys(("embedding", "attention", "mlp", "norms", "head"), 0)
    seen: set[int] = set()

    def add(part: str, module: nn.Module) -> None:
        for parameter in module.parameters():
            if id(parameter) not in seen:
                seen.add(id(parameter))
                counts[part] += parameter.numel()

    named = list(network.named_modules())
    for name, module in named:
        if isinstance(module, nn.LayerNorm | nn.RMSNorm) and not name.startswith("head"):
            add("norms", module)
    for name, module in named:
        if name.endswith("embedding"):
            add("embedding", module)
    for name, module in named:
        if name.endswith(".ffn"):
            add("mlp", module)
        elif name.endswith((".attention", ".cross")) or isinstance(module, ScoreBias):
            add("attention", module)
    add("head", network.head)  # type: ignore[arg-type]
    return counts


@pytest.mark.parametrize("choices", CHOICES, ids=lambda c: "-".join(c) or "plain")
@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("family", FAMILIES)
def test_parameters_are_those_of_the_network_part_by_part(
    config: Make, family: str, tied: bool, choices: dict[str, Any]
) -> None:
    head = HeadConfig(kind="lm", outputs=40, tied=tied, dense="gelu", bias=True)
    made = config(family, head, **choices)
    network, books = build(made), summarise_model(made)
    assert books.parameters == by_hand(network)
    assert books.total == sum(p.numel() for p in network.parameters())
    assert books.tied == tied
    assert books.weight_bytes["float32"] == 4 * books.total


@pytest.mark.parametrize("width", [0, 8])
def test_parameters_and_flops_of_an_embedding_with_a_window_are_those_of_its_projection(
    config: Make, width: int
) -> None:
    made = config("encoder", HeadConfig(), embedding_width=width, embedding_window=2)
    plain = config("encoder", HeadConfig(), embedding_width=width)
    network = build(made)
    assert summarise_model(made).parameters == by_hand(network)
    assert counted(made, 16) - counted(plain, 16) == 2 * 16 * ((5 if not width else 4) * (width or 16) * 16)


@pytest.mark.parametrize(
    "head",
    [
        HeadConfig(),
        HeadConfig(kind="embed", dense="tanh", dense_norm=True),
        HeadConfig(kind="classify", labels=("a", "b", "c"), dense="tanh", dense_bias=False, bias=True),
        HeadConfig(
            kind="mlm", outputs=40, tied=True, bias=True, dense="gelu", dense_norm=True, next_sentence_classes=2
        ),
    ],
    ids=lambda head: head.kind,
)
def test_parameters_of_the_head_are_those_of_the_network(config: Make, head: HeadConfig) -> None:
    made = config("encoder", head)
    assert summarise_model(made).parameters["head"] == by_hand(build(made, device="meta"))["head"]


@pytest.mark.parametrize("name", PRESETS)
def test_parameters_of_a_preset_are_those_of_its_network(name: str) -> None:
    made = find_preset(name)
    assert summarise_model(made).parameters == by_hand(build(made, device="meta"))


# ── FLOPs ────────────────────────────────────────────────────────────────────────────────────────────────────────


def counted(made: Config, length: int, backward: bool = False) -> int:
    """What torch counts for one row of `length` tokens (and a source as long), with every score computed."""
    network = build(made)
    for name in ("encoder", "decoder"):
        if hasattr(network, name):
            getattr(network, name).kernel = "eager"
    ids = torch.zeros(1, length, dtype=torch.long)
    with FlopCounterMode(display=False) as counter:
        out = network(Inputs(ids, source=Inputs(ids))) if made.family == "seq2seq" else network(ids)
        if backward:
            out.sum().backward()
    return int(counter.get_total_flops())


@pytest.mark.parametrize("choices", CHOICES, ids=lambda c: "-".join(c) or "plain")
@pytest.mark.parametrize("family", FAMILIES)
def test_forward_flops_are_what_torch_counts(config: Make, family: str, choices: dict[str, Any]) -> None:
    head = HeadConfig(kind="mlm", outputs=40, tied=True, dense="gelu")
    made = config(family, head, **choices)
    assert summarise_model(made, context_length=12).flops_forward * 12 == counted(made, 12)


@pytest.mark.parametrize("family", FAMILIES)
def test_training_flops_are_what_torch_counts(config: Make, family: str) -> None:
    made = config(family)
    assert summarise_model(made, context_length=12).flops_training * 12 == counted(made, 12, backward=True)


@pytest.mark.parametrize("family", ["encoder", "decoder"])
def test_a_window_counts_the_keys_that_a_token_in_the_middle_sees(config: Make, family: str) -> None:
    """Attention costs 4·H·D for each of them; an encoder's window reaches to both sides."""
    place = make_layout(torch.zeros(1, 21))
    see = Mask(place, place, causal=family == "decoder", window=3).dense()[0, 0]
    keys = int(see[10].sum())
    with_window, without = (
        summarise_model(config(family, sliding_window=w, layers=1), context_length=21) for w in (3, 0)
    )
    assert without.flops_forward - with_window.flops_forward == 4 * 16 * (21 - keys)


def test_a_window_longer_than_the_text_costs_nothing_less(config: Make) -> None:
    wide, none = (summarise_model(config("encoder", sliding_window=w), context_length=5) for w in (50, 0))
    assert wide.flops_forward == none.flops_forward


def test_the_context_is_the_models_own_unless_it_is_said(config: Make) -> None:
    assert summarise_model(config("decoder")).context_length == 64
    assert summarise_model(config("decoder"), context_length=10).context_length == 10
    assert summarise_model(find_preset("llama-3.1-8b")).context_length == 2048


# ── Caches ───────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(("dtype", "name"), [(torch.float32, "float32"), (torch.bfloat16, "bfloat16")])
def test_cache_bytes_are_those_of_real_caches(config: Make, dtype: torch.dtype, name: str) -> None:
    made = config("seq2seq", kv_heads=2, layers=3)
    network, books = build(made, dtype=dtype), summarise_model(made)
    cache = network.new_cache(2, 7)  # type: ignore[union-attr]
    assert books.cache_bytes_per_token[name] * 7 * 2 == sum(t.nbytes for t in (*cache.keys, *cache.values))
    memory = network.build_cross_cache(network.encode(torch.zeros(2, 5, dtype=torch.long)))  # type: ignore[union-attr]
    assert books.cross_bytes_per_source_token[name] * 5 * 2 == sum(t.nbytes for t in (*memory.keys, *memory.values))


def test_what_has_no_cache_has_no_bytes(config: Make) -> None:
    encoder, decoder = summarise_model(config("encoder")), summarise_model(config("decoder"))
    assert set(encoder.cache_bytes_per_token.values()) == {0}
    assert set(decoder.cross_bytes_per_source_token.values()) == {0}
    assert decoder.cache_bytes_per_token["int8"] == 2 * 2 * 16


def test_the_books_are_plain_values(config: Make) -> None:
    books = summarise_model(config("seq2seq")).to_dict()
    assert books["family"] == "seq2seq"
    assert books["layers"] == {"encoder": 2, "decoder": 2}
    assert sum(books["parameters"].values()) == books["total"]


# ── Recurrent models ─────────────────────────────────────────────────────────────────────────────────────────────

RECURRENT: list[dict[str, Any]] = [
    {"block": "rnn", "layers": 1},
    {"block": "gru", "layers": 3, "embedding_width": 8, "embedding_norm": "extra"},
    {"block": "lstm", "layers": 2, "token_types": 2},
    {"block": "lstm", "layers": 2, "recurrent_attention": "none"},
]


@pytest.mark.filterwarnings("ignore:TF32 acceleration")
@pytest.mark.parametrize("choices", RECURRENT, ids=lambda c: "-".join(map(str, c.values())))
@pytest.mark.parametrize("family", FAMILIES)
def test_parameters_and_flops_of_recurrent_models(config: Make, family: str, choices: dict[str, Any]) -> None:
    """Torch counts the map to the first state, which runs once for each text; the books count what each token costs."""
    head = HeadConfig(kind="mlm", outputs=40, tied=True, dense="gelu")
    made = config(family, head, heads=0, ffn_width=0, **choices)
    network, books = build(made), summarise_model(made, context_length=12)
    attention = ("decoder.layers.0.query.", "decoder.layers.0.key.", "decoder.layers.0.score.")
    assert books.total == sum(p.numel() for p in network.parameters())
    assert books.parameters["attention"] == sum(
        p.numel() for name, p in network.named_parameters() if name.startswith(attention)
    )
    with torch.backends.mkldnn.flags(enabled=False):  # its kernel is one operator, which torch does not count
        found = counted(made, 12)
    initial = 0
    if family == "seq2seq":
        initial = 2 * network.decoder.initial.weight.numel()  # type: ignore[union-attr]
    assert found == 12 * books.flops_forward + initial


@pytest.mark.parametrize("kind", ["gru", "lstm"])
def test_the_state_of_a_recurrent_decoder_does_not_grow(config: Make, kind: str) -> None:
    made = config("seq2seq", heads=0, ffn_width=0, block=kind, layers=3)
    network, books = build(made), summarise_model(made)
    cache = network.new_cache(2, 7)  # type: ignore[union-attr]
    assert 2 * books.state_bytes["float32"] == sum(state.nbytes for states in cache.states for state in states)
    assert books.cache_bytes_per_token["float32"] == 0
    memory = network.build_cross_cache(network.encode(torch.zeros(2, 5, dtype=torch.long)))  # type: ignore[union-attr]
    assert books.cross_bytes_per_source_token["float32"] * 5 * 2 == sum(
        t.nbytes for t in (*memory.keys, *memory.values)
    )
