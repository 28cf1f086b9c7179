"""A model's config: families, what does not fit together, and the way to plain values and back."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from qkv.blocks import HeadConfig, RotaryScaling, StackConfig
from qkv.errors import QkvError
from qkv.models import Config
from qkv.models.tables.presets import PRESETS, find_preset
from qkv.store.config_json import parse_config

Make = Callable[..., Any]
LM = HeadConfig(kind="lm", outputs=40)


# ── Families ─────────────────────────────────────────────────────────────────────────────────────────────────────


def test_the_family_is_which_stacks_there_are(stack_config: Make) -> None:
    one, other = stack_config(), stack_config(layers=3)
    assert Config(encoder=one).family == "encoder"
    assert Config(decoder=one).family == "decoder"
    both = Config(encoder=one, decoder=other)
    assert both.family == "seq2seq"
    assert both.stack is other, "the head reads the decoder"
    assert Config(encoder=one).stack is one


@pytest.mark.parametrize(
    ("fields", "match"),
    [
        ({}, "a config needs an encoder, a decoder or both"),
        ({"encoder": {}, "share_embeddings": True}, "share_embeddings needs an encoder and a decoder"),
        (
            {"encoder": {"vocab_size": 41}, "decoder": {}, "share_embeddings": True},
            r"share_embeddings needs one vocab_size, not 41 \(encoder\) and 40 \(decoder\)",
        ),
        (
            {"encoder": {"embedding_width": 8}, "decoder": {}, "share_embeddings": True},
            "share_embeddings needs one embedding_width",
        ),
        ({"decoder": {"embedding_window": 2}}, "embedding_window is for a model of family 'encoder', not 'decoder'"),
        ({"encoder": {"embedding_window": 2}, "decoder": {}}, "embedding_window is for .* not 'seq2seq'"),
        ({"encoder": {"width": 32}, "decoder": {}}, "encoder and decoder must have the same width"),
        ({"encoder": {}, "decoder": {"residual": "parallel"}}, "decoder: residual = .* cross-attention"),
        ({"decoder": {}, "head": HeadConfig(kind="lm", outputs=41)}, "head outputs = 41 must equal vocab_size = 40"),
        ({"decoder": {}, "eos_token_ids": 5}, "eos_token_ids = 5 must be a list of integers"),
        ({"decoder": {}, "pad_token_id": "0"}, "pad_token_id = '0' must be an integer or None"),
        ({"decoder": {}, "head": None}, "head = None must be a HeadConfig"),
    ],
)
def test_a_config_that_makes_no_sense_is_refused(stack_config: Make, fields: dict[str, Any], match: str) -> None:
    made = {k: stack_config(**v) if k in ("encoder", "decoder") else v for k, v in fields.items()}
    with pytest.raises(ValueError, match=match):
        Config(**made)


def test_stacks_of_a_seq2seq_may_have_vocabularies_of_their_own(stack_config: Make) -> None:
    config = Config(encoder=stack_config(vocab_size=50), decoder=stack_config(), head=LM)
    assert config.stack.vocab_size == 40


# ── Plain values and back ────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("name", sorted(PRESETS))
def test_every_preset_survives_json(name: str) -> None:
    config = find_preset(name)
    values = json.loads(json.dumps(config.to_dict()))
    assert values["format"] == "qkv"
    assert values["family"] == config.family
    assert parse_config(values) == config


def test_everything_that_is_not_a_default_survives_json(stack_config: Make) -> None:
    stack = stack_config(
        position="rotary",
        rotary_scaling=RotaryScaling(
            kind="llama3", factor=2.0, low_freq_factor=1.5, high_freq_factor=3.0, original_max_positions=77
        ),
        sliding_window_layers=(1,),
        sliding_window=3,
    )
    head = HeadConfig(kind="classify", labels=("a", "b", "c"), dense="tanh", dropout=0.5)
    config = Config(
        encoder=stack, head=head, pad_token_id=3, decoder_start_token_id=4, eos_token_ids=(5, 6), architecture="bert"
    )
    assert parse_config(json.loads(json.dumps(config.to_dict()))) == config


def plain(stack_config: Make) -> dict[str, Any]:
    values: dict[str, Any] = json.loads(json.dumps(Config(decoder=stack_config(), head=LM).to_dict()))
    return values


def change(values: dict[str, Any], path: str, value: Any) -> None:
    *parents, last = path.split(".")
    for name in parents:
        values = values[name]
    values[last] = value


@pytest.mark.parametrize(
    ("path", "value", "match"),
    [
        ("version", 2, r"x/config.json: format version 2, but this qkv reads 1"),
        ("hed", {}, r"x/config.json: unknown field 'hed'; did you mean 'head'\?"),
        ("decoder.witdh", 16, r"x/config.json: decoder: unknown field 'witdh'; did you mean 'width'\?"),
        ("head.knid", "lm", r"x/config.json: head: unknown field 'knid'; did you mean 'kind'\?"),
        ("decoder.position", "rotery", r"x/config.json: decoder: position = 'rotery' is unknown; did you mean"),
        ("decoder.width", "16", r"x/config.json: decoder: width = '16' must be an integer"),
        (
            "decoder.rotary_scaling",
            {"kind": "longrope", "factor": 1},
            r"decoder: rotary_scaling: kind = 'longrope' must be one of",
        ),
        ("decoder.rotary_scaling", {"kind": "linear"}, r"decoder: rotary_scaling: missing factor"),
        ("decoder.rotary_scaling", 2.0, r"decoder: rotary_scaling: expected a table of fields, found float"),
        ("decoder", "gpt2", r"x/config.json: decoder: expected a table of fields, found str"),
        ("decoder", None, r"x/config.json: a config needs an encoder, a decoder or both"),
        ("head", None, r"x/config.json: head: expected a table of fields, found NoneType"),
        ("head", "lm", r"x/config.json: head: expected a table of fields, found str"),
        ("head.outputs", 7, r"x/config.json: head outputs = 7 must equal vocab_size = 40"),
        ("eos_token_ids", 5, r"x/config.json: eos_token_ids = 5 must be a list"),
    ],
)
def test_a_wrong_value_is_named_with_its_file_and_field(stack_config: Make, path: str, value: Any, match: str) -> None:
    values = plain(stack_config)
    change(values, path, value)
    with pytest.raises(QkvError, match=match):
        parse_config(values, "x/config.json")


def test_what_is_missing_is_listed(stack_config: Make) -> None:
    values = plain(stack_config)
    del values["decoder"]["vocab_size"], values["decoder"]["layers"]
    with pytest.raises(QkvError, match=r"config.json: decoder: missing vocab_size, layers"):
        parse_config(values)


def test_what_has_a_default_may_be_missing() -> None:
    small = {"vocab_size": 9, "width": 8, "layers": 1, "heads": 2, "ffn_width": 8}
    config = parse_config({"encoder": small})
    assert config == Config(encoder=StackConfig(**small))


def test_something_that_is_no_table_is_refused() -> None:
    with pytest.raises(QkvError, match="x: expected a table of fields, found list"):
        parse_config([], "x")  # type: ignore[arg-type]
