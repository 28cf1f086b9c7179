"""The machinery of the tables: rows both ways, names for every parameter, and no error but ours for wrong values."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from qkv.blocks import HeadConfig, StackConfig
from qkv.errors import QkvError
from qkv.models import Config, build
from qkv.models.tables import (
    ARCHITECTURES,
    UnsupportedConfigError,
    find_architecture,
    map_parameters,
    presets,
    read_config,
    write_config,
)
from qkv.models.tables.architecture import Concatenated, ConfigKey, InterleavedQkv, Renamed

SMALL = {
    "bert": {
        "hidden_size": 8,
        "num_attention_heads": 2,
        "num_hidden_layers": 2,
        "intermediate_size": 12,
        "vocab_size": 20,
    },
    "distilbert": {"dim": 8, "n_heads": 2, "n_layers": 2, "hidden_dim": 12, "vocab_size": 20},
    "gpt2": {"n_embd": 8, "n_head": 2, "n_layer": 2, "vocab_size": 20},
    "t5": {"d_model": 8, "num_heads": 2, "num_layers": 2, "d_kv": 4, "d_ff": 12, "vocab_size": 20},
    "bart": {
        "d_model": 8,
        "vocab_size": 20,
        **{f"{side}_{key}": n for side in ("encoder", "decoder") for key, n in (("layers", 2), ("ffn_dim", 12))},
        **{f"{side}_attention_heads": 2 for side in ("encoder", "decoder")},
    },
}
LIKE = {"mt5": "t5", "mbart": "bart", "marian": "bart", "distilbert": "distilbert", "gpt2": "gpt2", "t5": "t5"}
MORE: dict[str, dict[str, Any]] = {
    "roberta": {"pad_token_id": 1},
    "albert": {"embedding_size": 4},
    "electra": {"embedding_size": 4},
    "modernbert": {"local_attention": 4},
    "mistral": {"sliding_window": 3},
    "qwen2": {"use_sliding_window": True, "sliding_window": 3, "max_window_layers": 1},
    "qwen3": {"head_dim": 4},
    "mixtral": {"num_local_experts": 3},
    "qwen3_moe": {"num_experts": 3, "num_experts_per_tok": 2, "moe_intermediate_size": 6},
    "gemma2": {"head_dim": 4, "query_pre_attn_scalar": 4, "num_key_value_heads": 1},
    "gpt_neox": {"rotary_pct": 0.5},
}


def theirs_of(name: str, cls: str) -> dict[str, Any]:
    """A small config.json of an architecture."""
    sizes = SMALL["bart" if name == "bart" else LIKE.get(name, "bert")]
    return {"model_type": name, "architectures": [cls], **sizes, **MORE.get(name, {})}


HEADS = [(name, table.class_name) for name, architecture in ARCHITECTURES.items() for table in architecture.heads]


@pytest.mark.parametrize(("name", "cls"), HEADS)
def test_what_is_read_is_written_again(name, cls):
    architecture = ARCHITECTURES[name]
    config = read_config(architecture, theirs_of(name, cls))
    written, table = write_config(architecture, config)
    assert read_config(architecture, written) == config
    assert table.class_name == written["architectures"][0]
    # The next-sentence head has the shape of a two-class model, and is written as one.
    assert table.class_name == (cls if cls != "BertForNextSentencePrediction" else "BertForSequenceClassification")


@pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])
@pytest.mark.parametrize(("name", "cls"), HEADS)
def test_every_parameter_has_a_place_of_its_own(name, cls, tied):
    """No parameter of ours is without a row, and no tensor of theirs is read for two of ours."""
    architecture = ARCHITECTURES[name]
    table = next(table for table in architecture.heads if table.class_name == cls)
    config = read_config(architecture, {**theirs_of(name, cls), "tie_word_embeddings": tied})
    names = [n for n, _ in build(config, device="meta").named_parameters()]
    rows = list(map_parameters(architecture, table, config, names))
    assert [row.name for row in rows] == names
    places = [place for row in rows for place in row.theirs]
    assert len(set(places)) == len(places)
    assert not [place for place in places if "{" in place]


def test_the_label_of_each_class_keeps_its_number():
    """JSON has text for keys, in any order: 10 comes after 9, not after 1."""
    names = {str(i): f"class {i}" for i in (11, 3, 10, 0, 1, 2, 9, 8, 7, 6, 5, 4)}
    theirs = {**theirs_of("bert", "BertForSequenceClassification"), "id2label": names}
    config = read_config(ARCHITECTURES["bert"], theirs)
    assert config.head.labels == tuple(f"class {i}" for i in range(12))


@pytest.mark.parametrize(("said", "count"), [({}, 2), ({"num_labels": 5}, 5), ({"id2label": {"0": "LABEL_0"}}, 1)])
def test_the_number_of_classes_without_names(said, count):
    config = read_config(ARCHITECTURES["bert"], {**theirs_of("bert", "BertForSequenceClassification"), **said})
    assert (config.head.outputs, config.head.labels) == (count, ())


# ── Old and new spellings of the same settings ───────────────────────────────────────────────────────────────────

SPELLINGS = [
    ("llama", {"rope_theta": 5e5}, {"rope_parameters": {"rope_type": "default", "rope_theta": 5e5}}),
    (
        "llama",
        {"rope_scaling": {"type": "linear", "factor": 2.0}},
        {"rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 1e4}},
    ),
    (
        "gpt_neox",
        {"rotary_pct": 0.5, "rotary_emb_base": 500},
        {"rope_parameters": {"rope_theta": 500.0, "partial_rotary_factor": 0.5}},
    ),
    (
        "modernbert",
        {"global_rope_theta": 5e4, "local_rope_theta": 3e3, "global_attn_every_n_layers": 2},
        {
            "rope_parameters": {
                "full_attention": {"rope_type": "default", "rope_theta": 5e4},
                "sliding_attention": {"rope_type": "default", "rope_theta": 3e3},
            },
            "layer_types": ["full_attention", "sliding_attention"],
        },
    ),
    (
        "qwen2",
        {"use_sliding_window": True, "sliding_window": 3, "max_window_layers": 1},
        {
            "use_sliding_window": True,
            "sliding_window": 3,
            "layer_types": ["full_attention", "sliding_attention"],
        },
    ),
    ("qwen2", {"use_sliding_window": False, "sliding_window": 3}, {"use_sliding_window": False}),
    ("gpt2", {"n_inner": None}, {"n_inner": 32}),
    ("bert", {"hidden_act": "swish"}, {"hidden_act": "silu"}),
    ("bert", {"eos_token_id": 3}, {"eos_token_id": [3]}),
]


@pytest.mark.parametrize(("name", "old", "new"), SPELLINGS, ids=[f"{n}-{next(iter(o))}" for n, o, _ in SPELLINGS])
def test_two_spellings_of_one_setting(name, old, new):
    architecture = ARCHITECTURES[name]
    whole = theirs_of(name, architecture.heads[1].class_name)
    base = {key: value for key, value in whole.items() if key not in (*MORE.get(name, {}), *old)}
    first, second = (read_config(architecture, {**base, **keys}) for keys in (old, new))
    assert first == second
    assert name in ("qwen2", "gpt2") or first != read_config(architecture, whole)


@pytest.mark.parametrize(
    ("name", "keys"),
    [
        ("mistral", {"sliding_window": 1}),
        ("qwen2", {"use_sliding_window": True, "sliding_window": 1, "max_window_layers": 0}),
        ("modernbert", {"local_attention": 1}),
    ],
)
def test_a_window_that_shows_nothing_else_is_refused(name, keys):
    """Ours counts distances, and 0 is no limit: read as that, it would be the opposite."""
    with pytest.raises(QkvError, match=next(key for key in keys if key != "use_sliding_window")):
        read_config(ARCHITECTURES[name], {**theirs_of(name, ARCHITECTURES[name].heads[0].class_name), **keys})


@pytest.mark.parametrize(("name", "window", "distance"), [("mistral", None, 0), ("qwen2", None, 0), ("mistral", 5, 4)])
def test_their_window_counts_the_token_itself_and_no_window_is_no_limit(name, window, distance):
    theirs = {**theirs_of(name, ARCHITECTURES[name].heads[0].class_name), "sliding_window": window}
    assert read_config(ARCHITECTURES[name], theirs).stack.sliding_window == distance


# ── Wrong values ─────────────────────────────────────────────────────────────────────────────────────────────────

WRONG: list[Any] = [None, "x", -1, 0, 1.5, [], {}, True, 10**30, [None], {"a": 1}]


@pytest.mark.parametrize(("name", "cls"), HEADS)
def test_any_wrong_value_is_read_or_refused(name, cls):
    """Every key that we would write, set to anything: no other error than ours."""
    architecture = ARCHITECTURES[name]
    whole, _ = write_config(architecture, read_config(architecture, theirs_of(name, cls)))
    refused = 0
    for key in (*whole, "rope_scaling", "rope_parameters", "layer_types", "architectures", "num_labels"):
        for value in WRONG:
            try:
                read_config(architecture, {**whole, key: value})
            except QkvError:
                refused += 1
    assert refused > 20


def test_an_unknown_architecture_and_the_nearest_one():
    with pytest.raises(QkvError, match="did you mean 'roberta'"):
        find_architecture("robertta")


# ── What a layout cannot express ─────────────────────────────────────────────────────────────────────────────────


def test_each_field_without_a_place_is_named():
    config = presets.find_preset("gpt2")
    stack = replace(config.decoder, norm_placement="sandwich", qk_norm="head", position="alibi")
    with pytest.raises(UnsupportedConfigError) as caught:
        write_config(ARCHITECTURES["gpt2"], replace(config, decoder=stack))
    assert {line.split(":")[0] for line in caught.value.fields} == {
        "decoder.norm_placement",
        "decoder.qk_norm",
        "decoder.position",
    }


def test_a_family_that_a_layout_does_not_have_is_said():
    with pytest.raises(UnsupportedConfigError, match=r"bert.*no decoder form") as caught:
        write_config(ARCHITECTURES["bert"], presets.find_preset("gpt2"))
    assert caught.value.fields == []


def test_a_class_that_keeps_the_dropout_is_preferred():
    """Both classes of two outputs would do; the one that keeps every field is taken."""
    config = read_config(ARCHITECTURES["bert"], theirs_of("bert", "BertForNextSentencePrediction"))
    for dropout in (0.0, 0.1):
        head = replace(config.head, dropout=dropout)
        written, _ = write_config(ARCHITECTURES["bert"], replace(config, head=head))
        assert read_config(ARCHITECTURES["bert"], written).head == head


@pytest.mark.parametrize(
    ("name", "value", "class_name"),
    [
        *(("reads_sentences", value, "T5ForConditionalGeneration") for value in (None, True, False)),
        *(("text_processor", value, "T5ForConditionalGeneration") for value in (None, "careful")),
        *(("reads_pairs", value, "BertForSequenceClassification") for value in (None, True, False)),
    ],
)
def test_what_a_model_reads_is_kept(name, value, class_name):
    architecture = ARCHITECTURES["t5" if class_name.startswith("T5") else "bert"]
    config = replace(read_config(architecture, theirs_of(architecture.name, class_name)), **{name: value})
    written, _ = write_config(architecture, config)
    assert (name in written) == (value is not None)
    assert read_config(architecture, written) == config


# ── Rows and references, both ways ───────────────────────────────────────────────────────────────────────────────


def stack_of(heads: int, groups: int, head_dim: int) -> StackConfig:
    return StackConfig(
        vocab_size=5, width=6, layers=1, heads=heads * groups, kv_heads=heads, head_dim=head_dim, ffn_width=7
    )


SHAPES = st.tuples(st.integers(1, 3), st.integers(1, 3), st.integers(1, 4))


@given(SHAPES, st.booleans())
def test_a_joined_projection_comes_apart_as_it_went_together(shape, bias):
    stack = stack_of(*shape)
    rows = (stack.heads + 2 * stack.kv_heads) * stack.head_dim
    ours = torch.arange(float(rows)) if bias else torch.arange(rows * 6.0).view(rows, 6)
    join = Concatenated("q", "k", "v")
    parts = join.write(ours, "weight", stack)
    assert [len(part) for part in parts] == [n * stack.head_dim for n in (stack.heads, stack.kv_heads, stack.kv_heads)]
    assert torch.equal(join.read(parts, "weight", stack), ours)


@given(st.integers(1, 3), st.integers(1, 4), st.booleans())
def test_a_projection_by_heads_comes_apart_as_it_went_together(heads, width, bias):
    stack = stack_of(heads, 1, width)
    rows = 3 * heads * width
    ours = torch.arange(float(rows)) if bias else torch.arange(rows * 6.0).view(rows, 6)
    layout = InterleavedQkv("m")
    theirs = layout.write(ours, "weight", stack)
    assert torch.equal(layout.read(theirs, "weight", stack), ours)
    # Head 0's query, key and value come first in theirs; all queries come first in ours.
    assert torch.equal(theirs[0][width : 2 * width], ours[heads * width : heads * width + width])


@given(st.integers(1, 4), st.integers(1, 4))
def test_a_transposed_matrix_and_a_bias_as_a_row(a, b):
    stack = stack_of(1, 1, 2)
    matrix, vector = torch.randn(a, b), torch.randn(a)
    turned = Renamed("m", transposed=True)
    assert torch.equal(turned.write(matrix, "weight", stack)[0], matrix.T)
    assert torch.equal(turned.read(turned.write(matrix, "weight", stack), "weight", stack), matrix)
    assert torch.equal(turned.read([vector], "bias", stack), vector)
    row = Renamed("m", is_row_vector=True)
    assert row.write(vector, "bias", stack)[0].shape == (1, a)
    assert torch.equal(row.read(row.write(vector, "bias", stack), "bias", stack), vector)
    assert torch.equal(row.read([vector], "bias", stack), vector)


def test_a_key_with_codes_writes_the_name_that_it_was_first_given():
    key = ConfigKey("act", "gelu", {"silu": "silu", "swish": "silu", "gelu": "gelu"})
    assert [key.read({"act": name}) for name in ("swish", "silu")] == ["silu", "silu"]
    assert key.write("silu", None) == {"act": "silu"}
    assert key.read({}) == key.read({"act": None}) == "gelu"


def test_a_needed_key_is_asked_for():
    with pytest.raises(QkvError, match="missing 'size'"):
        ConfigKey("size").read({})


def test_a_config_of_no_architecture_is_read_as_itself():
    """The hint for export is no part of what a table compares."""
    stack = presets.find_preset("gpt2").decoder
    config = Config(decoder=stack, head=HeadConfig(kind="lm", outputs=stack.vocab_size, tied=True))
    assert write_config(ARCHITECTURES["gpt2"], config)[1].class_name == "GPT2LMHeadModel"
