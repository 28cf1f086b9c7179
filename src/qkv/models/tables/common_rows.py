"""Rows that several architectures share."""

import math
from dataclasses import dataclass, field
from typing import Any

from qkv.blocks import RotaryScaling
from qkv.models.tables.architecture import ComputedField, ConfigKey, FieldRows, HeadTable, Json, TensorNames

ACTIVATIONS = {
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "relu": "relu",
    "relu2": "relu2",
    "silu": "silu",
}
ACTIVATIONS_AND_ALIASES = {
    **ACTIVATIONS,
    "swish": "silu",
    "gelu_python": "gelu",
    "gelu_fast": "gelu_tanh",
    "tanh": "tanh",
}

SPECIAL_TOKENS: FieldRows = {
    "pad_token_id": ConfigKey("pad_token_id", None),
    "decoder_start_token_id": ConfigKey("bos_token_id", None),
    "eos_token_ids": ComputedField(
        lambda theirs: _as_tuple(theirs.get("eos_token_id")),
        lambda value, config: {"eos_token_id": list(value) if len(value) > 1 else (value[0] if value else None)},
    ),
}
SPECIAL_TOKENS_SEQ2SEQ: FieldRows = {
    **SPECIAL_TOKENS,
    "decoder_start_token_id": ConfigKey("decoder_start_token_id", None),
}

BUFFERS = (
    "*position_ids",
    "*.attn.bias",
    "*.attn.masked_bias",
    "*.attention.bias",
    "*.attention.masked_bias",
    "*rotary_emb.inv_freq",
)
"""Tensors in old checkpoints that are not weights."""


def _as_tuple(value: Any) -> tuple[int, ...]:
    if value is None:
        return ()
    return tuple(value) if isinstance(value, list) else (value,)


def head_dropout(name: str, fallback: str) -> ComputedField:
    """The dropout of a classifier. If their key `name` is missing, the key `fallback` of the body applies."""

    def read(theirs: Json) -> float:
        value = theirs.get(name)
        return float(theirs.get(fallback, 0.1) if value is None else value)

    return ComputedField(read, lambda value, head: {name: value})


GATED_ACTIVATION_NAMES = {
    "silu": "swiglu",
    "gelu": "geglu",
    "gelu_pytorch_tanh": "geglu_tanh",
    "gelu_new": "geglu_tanh",
    "relu": "reglu",
    "relu2": "reglu2",
}


def read_bias(theirs: Json) -> str:
    """Return our `bias`, given their two flags."""
    attention, mlp = bool(theirs.get("attention_bias")), bool(theirs.get("mlp_bias"))
    if mlp and not attention:
        raise ValueError("mlp_bias without attention_bias is not supported")
    return "all" if mlp else "attention" if attention else "none"


def write_bias(value: str, stack: Any) -> Json:
    """The inverse: return the two flags, given our `bias`."""
    return {"attention_bias": value in ("all", "attention"), "mlp_bias": value == "all"}


# ── Rotary positions ─────────────────────────────────────────────────────────────────────────────────────────────


def rope_settings(theirs: Json, layer_type: str = "") -> Json:
    """Return their rotary settings, from `rope_parameters` or the older key `rope_scaling`."""
    rope = theirs.get("rope_parameters") or {}
    if layer_type in rope:
        rope = rope[layer_type]
    scaling = theirs.get("rope_scaling") or {}
    return {**scaling, **rope}


def _read_base(theirs: Json) -> float:
    return float(
        rope_settings(theirs).get("rope_theta") or theirs.get("rope_theta") or theirs.get("rotary_emb_base") or 10_000.0
    )


def _read_rotary_fraction(theirs: Json) -> float:
    rope = rope_settings(theirs)
    for value in (rope.get("partial_rotary_factor"), theirs.get("partial_rotary_factor"), theirs.get("rotary_pct")):
        if value is not None:
            return float(value)
    return 1.0


def _read_scaling(theirs: Json) -> RotaryScaling | None:
    rope = rope_settings(theirs)
    kind = rope.get("rope_type") or rope.get("type") or "default"
    if kind == "default":
        return None
    if kind == "linear":
        return RotaryScaling(kind="linear", factor=float(rope["factor"]))
    if kind == "yarn":
        return _read_yarn(rope, theirs)
    if kind != "llama3":
        raise ValueError(f"rotary scaling {kind!r} is not supported; known: default, linear, llama3, yarn")
    return RotaryScaling(
        kind="llama3",
        factor=float(rope["factor"]),
        low_freq_factor=float(rope["low_freq_factor"]),
        high_freq_factor=float(rope["high_freq_factor"]),
        original_max_positions=int(rope["original_max_position_embeddings"]),
    )


def _read_yarn(rope: Json, theirs: Json) -> RotaryScaling:
    if not rope.get("truncate", True):
        raise ValueError("rotary scaling 'yarn' with truncate = false is not supported")
    factor, scale, scale_all = float(rope["factor"]), rope.get("mscale"), rope.get("mscale_all_dim")
    attention = rope.get("attention_factor")
    if attention is None and scale and scale_all and factor > 1:
        attention = (0.1 * scale * math.log(factor) + 1) / (0.1 * scale_all * math.log(factor) + 1)
    return RotaryScaling(
        kind="yarn",
        factor=factor,
        beta_slow=float(rope.get("beta_slow") or 1),
        beta_fast=float(rope.get("beta_fast") or 32),
        attention_factor=float(attention or 0),
        original_max_positions=int(rope.get("original_max_position_embeddings") or theirs["max_position_embeddings"]),
    )


def _write_rope(value: Any, stack: Any) -> Json:
    rope: Json = {"rope_theta": stack.rotary_base, "rope_type": "default"}
    scaling = stack.rotary_scaling
    if scaling is not None:
        rope |= {"rope_type": scaling.kind, "factor": scaling.factor}
        if scaling.kind == "llama3":
            rope |= {
                "low_freq_factor": scaling.low_freq_factor,
                "high_freq_factor": scaling.high_freq_factor,
                "original_max_position_embeddings": scaling.original_max_positions,
            }
        if scaling.kind == "yarn":
            rope |= {
                "beta_slow": scaling.beta_slow,
                "beta_fast": scaling.beta_fast,
                "attention_factor": scaling.attention_factor or None,
                "original_max_position_embeddings": scaling.original_max_positions,
            }
    loose = None if scaling is None else {k: v for k, v in rope.items() if k != "rope_theta"}
    if stack.rotary_fraction != 1.0:
        rope["partial_rotary_factor"] = stack.rotary_fraction
    return {"rope_parameters": rope, "rope_theta": stack.rotary_base, "rope_scaling": loose}


ROPE: FieldRows = {
    "position": "rotary",
    "rotary_base": ComputedField(_read_base, _write_rope),
    "rotary_scaling": ComputedField(_read_scaling, lambda value, stack: {}),  # _write_rope already writes it
}
ROPE_PARTIAL: FieldRows = {**ROPE, "rotary_fraction": ComputedField(_read_rotary_fraction, lambda value, stack: {})}


# ── Heads ────────────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class HeadClass:
    """The suffix of their class names for one kind of head, and the usual properties of such a head."""

    suffix: str
    outputs: str | int
    module: str = "classifier"  # their usual name of the output layer
    fields: FieldRows = field(default_factory=lambda: {"bias": True})


HEAD_CLASSES = {
    "lm": HeadClass("ForCausalLM", "vocab_size", "lm_head"),
    "mlm": HeadClass("ForMaskedLM", "vocab_size"),
    "classify": HeadClass("ForSequenceClassification", "labels"),
    "choice": HeadClass("ForMultipleChoice", 1),
    "tag": HeadClass("ForTokenClassification", "labels"),
    "span": HeadClass("ForQuestionAnswering", 2, "qa_outputs"),
}


def task_head(
    model: str,
    kind: str,
    fields: FieldRows | None = None,
    names: TensorNames | None = None,
    *,
    prefix: str | None = None,
    stacks: tuple[str, ...] = (),
) -> HeadTable:
    """The table of a model with this kind of head. `fields` and `names` replace the defaults of the kind."""
    head = HEAD_CLASSES[kind]
    rows = {**(head.fields if fields is None else fields), "kind": kind}
    return HeadTable(model + head.suffix, rows, names or {"head.out": head.module}, head.outputs, prefix, stacks)


CLASSIFY_SEQ2SEQ: FieldRows = {
    "pool": "last",
    "dense": "tanh",
    "bias": True,
    "dropout": ConfigKey("classifier_dropout", 0.0),
}
CLASSIFIER_SEQ2SEQ: TensorNames = {
    "head.dense": "classification_head.dense",
    "head.out": "classification_head.out_proj",
}


def decoder_head_tables(name: str, *, token: str, qa_prefix: str | None = None) -> tuple[HeadTable, ...]:
    """The heads of a decoder. `token` is the output layer of a token classifier."""
    return (
        HeadTable(f"{name}Model"),
        task_head(name, "lm", {"tied": ConfigKey("tie_word_embeddings", False)}),
        task_head(name, "classify", {"pool": "last"}, {"head.out": "score"}),
        task_head(name, "tag", names={"head.out": token}),
        task_head(name, "span", prefix=qa_prefix),
    )
