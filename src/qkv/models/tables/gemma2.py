"""Gemma 2: a decoder with sandwich norms, softcapping of scores and logits, and a window in every other layer."""

from dataclasses import replace
from typing import Any

from qkv.models.tables.architecture import Architecture, ComputedField, ConfigKey, FieldRows, Json, Renamed, TensorNames
from qkv.models.tables.common_rows import BUFFERS, GATED_ACTIVATION_NAMES, SPECIAL_TOKENS, decoder_head_tables
from qkv.models.tables.llama import BODY, LAYER, QWEN_WINDOW, STACK


def _cap(key: str, default: float) -> ComputedField:
    """A cap under their key, where None stands for our 0."""
    return ComputedField(
        lambda theirs: float(theirs.get(key, default) or 0), lambda value, ours: {key: float(value) or None}
    )


def _read_score_scale(theirs: Json) -> str:
    scalar, head_dim = theirs.get("query_pre_attn_scalar", 256), theirs.get("head_dim", 256)
    if scalar != head_dim:
        raise ValueError(f"query_pre_attn_scalar = {scalar} is not supported: it must be head_dim = {head_dim}")
    return "sqrt"


def _as_qwen(theirs: Json) -> Json:
    """Their keys of windows as Qwen has them. Without `layer_types`, every other layer has a window."""
    layers = int(theirs.get("num_hidden_layers", 26))
    alternating = ["full_attention" if i % 2 else "sliding_attention" for i in range(min(layers, 4096))]
    kinds = {"layer_types": theirs.get("layer_types") or alternating, "num_hidden_layers": layers}
    return {**kinds, "use_sliding_window": True, "sliding_window": theirs.get("sliding_window", 4096)}


def _write_window(value: tuple[int, ...], stack: Any) -> Json:
    written = QWEN_WINDOW["sliding_window_layers"].write(value, stack)
    return {name: written[name] for name in ("sliding_window", "layer_types")}


ROWS: FieldRows = {
    **STACK,
    "vocab_size": ConfigKey("vocab_size", 256000),
    "width": ConfigKey("hidden_size", 2304),
    "layers": ConfigKey("num_hidden_layers", 26),
    "heads": ConfigKey("num_attention_heads", 8),
    "kv_heads": ConfigKey("num_key_value_heads", 4),
    "head_dim": ConfigKey("head_dim", 256),
    "ffn_width": ConfigKey("intermediate_size", 9216),
    "max_positions": ConfigKey("max_position_embeddings", 8192),
    "sliding_window": ComputedField(
        lambda theirs: QWEN_WINDOW["sliding_window"].read(_as_qwen(theirs)), lambda value, stack: {}
    ),
    "sliding_window_layers": ComputedField(
        lambda theirs: QWEN_WINDOW["sliding_window_layers"].read(_as_qwen(theirs)), _write_window
    ),
    "norm_placement": "sandwich",
    "feedforward": ConfigKey("hidden_activation", "gelu_pytorch_tanh", GATED_ACTIVATION_NAMES),
    "bias": ConfigKey("attention_bias", False, {True: "attention", False: "none"}),
    "score_scale": ComputedField(_read_score_scale, lambda value, stack: {"query_pre_attn_scalar": stack.head_dim}),
    "score_cap": _cap("attn_logit_softcapping", 50.0),
    "embedding_scale": "sqrt",
}
NORMS = {
    "decoder.blocks.{i}.attention_sub.norm": f"{LAYER}.input_layernorm",
    "decoder.blocks.{i}.attention_sub.norm_out": f"{LAYER}.post_attention_layernorm",
    "decoder.blocks.{i}.ffn_sub.norm": f"{LAYER}.pre_feedforward_layernorm",
    "decoder.blocks.{i}.ffn_sub.norm_out": f"{LAYER}.post_feedforward_layernorm",
    "decoder.norm": "norm",
}
NAMES: TensorNames = {**BODY, **{ours: Renamed(theirs, offset=1.0) for ours, theirs in NORMS.items()}}
LM: FieldRows = {
    "kind": "lm",
    "tied": ConfigKey("tie_word_embeddings", True),
    "logit_cap": _cap("final_logit_softcapping", 30.0),
}
BARE, LANGUAGE_MODEL, CLASSIFIER, TAGGER, _ = decoder_head_tables("Gemma2", token="score")

GEMMA2 = Architecture(
    name="gemma2",
    prefix="model.",
    stacks={"decoder": ROWS},
    config=SPECIAL_TOKENS,
    body=NAMES,
    ignored=BUFFERS,
    supported_values={"use_bidirectional_attention": (None, False)},
    heads=(BARE, replace(LANGUAGE_MODEL, fields=LM), CLASSIFIER, TAGGER),
)
