"""ModernBERT: a pre-norm encoder, rotary, gated, with a sliding window in two of three layers."""

from typing import Any

from qkv.models.tables.architecture import (
    Architecture,
    ComputedField,
    ConfigKey,
    FieldRows,
    HeadTable,
    Json,
    TensorNames,
)
from qkv.models.tables.common_rows import (
    ACTIVATIONS_AND_ALIASES,
    BUFFERS,
    GATED_ACTIVATION_NAMES,
    SPECIAL_TOKENS,
    read_bias,
    rope_settings,
    task_head,
    write_bias,
)

FULL, LOCAL = "full_attention", "sliding_attention"


def _read_sliding_layers(theirs: Json) -> tuple[int, ...]:
    if theirs.get("layer_types"):
        return tuple(i for i, kind in enumerate(theirs["layer_types"]) if kind == LOCAL)
    every = int(theirs.get("global_attn_every_n_layers", 3))
    return tuple(i for i in range(int(theirs.get("num_hidden_layers", 22))) if i % every)


def _write_sliding_layers(value: tuple[int, ...], stack: Any) -> Json:
    return {"layer_types": [LOCAL if stack.window_of(i) else FULL for i in range(stack.layers)]}


def _read_window(theirs: Json) -> int:
    """Convert their window, which counts both sides, to our maximum distance, where 0 means no limit."""
    window = int(theirs.get("local_attention", 128))
    if window < 2:
        raise ValueError(f"local_attention = {window} is not supported: it must be at least 2")
    return window // 2


def _base_reader(kind: str, old: str, default: float) -> Any:
    return lambda theirs: float(rope_settings(theirs, kind).get("rope_theta") or theirs.get(old) or default)


def _write_base(value: float, stack: Any) -> Json:
    return {
        "rope_parameters": {
            FULL: {"rope_type": "default", "rope_theta": stack.rotary_base},
            LOCAL: {"rope_type": "default", "rope_theta": stack.rotary_base_sliding},
        },
        "global_rope_theta": stack.rotary_base,
        "local_rope_theta": stack.rotary_base_sliding,
    }


HEAD: TensorNames = {"head.dense": "head.dense", "head.norm": "head.norm"}
CLASSIFIER: TensorNames = {**HEAD, "head.out": "classifier"}
DENSE: FieldRows = {
    "dense": ConfigKey("classifier_activation", "gelu", ACTIVATIONS_AND_ALIASES),
    "dense_bias": ConfigKey("classifier_bias", False),
    "dense_norm": True,
    "dropout": ConfigKey("classifier_dropout", 0.0),
    "bias": True,
}
POOLED: FieldRows = {**DENSE, "pool": ConfigKey("classifier_pooling", "cls", {"cls": "first", "mean": "mean"})}
MLM: FieldRows = {
    **DENSE,
    "tied": ConfigKey("tie_word_embeddings", True),
    "bias": ConfigKey("decoder_bias", True),
    "dropout": 0.0,
}

MODERNBERT = Architecture(
    name="modernbert",
    prefix="model.",
    stacks={
        "encoder": {
            "vocab_size": ConfigKey("vocab_size", 50368),
            "width": ConfigKey("hidden_size", 768),
            "layers": ConfigKey("num_hidden_layers", 22),
            "heads": ConfigKey("num_attention_heads", 12),
            "ffn_width": ConfigKey("intermediate_size", 1152),
            "position": "rotary",
            "max_positions": ConfigKey("max_position_embeddings", 8192),
            "rotary_base": ComputedField(_base_reader(FULL, "global_rope_theta", 160_000.0), _write_base),
            "rotary_base_sliding": ComputedField(
                _base_reader(LOCAL, "local_rope_theta", 10_000.0), lambda value, stack: {}
            ),
            "sliding_window": ComputedField(_read_window, lambda value, stack: {"local_attention": 2 * value}),
            "sliding_window_layers": ComputedField(_read_sliding_layers, _write_sliding_layers),
            "norm_placement": "pre",
            "norm_affine": ConfigKey("norm_bias", False, {True: "gain_bias", False: "gain"}),
            "norm_eps": ConfigKey("norm_eps", 1e-5),
            "embedding_norm": "replaces_first",
            "feedforward": ConfigKey("hidden_activation", "gelu", GATED_ACTIVATION_NAMES),
            "bias": ComputedField(read_bias, write_bias),
            "dropout": ConfigKey("embedding_dropout", 0.0),
            "attention_dropout": ConfigKey("attention_dropout", 0.0),
            "ffn_dropout": ConfigKey("mlp_dropout", 0.0),
            "init": "scaled",
            "init_std": ConfigKey("initializer_range", 0.02),
        }
    },
    config=SPECIAL_TOKENS,
    body={
        "embedding.token": "embeddings.tok_embeddings",
        "embedding.norm": "embeddings.norm",
        "encoder.blocks.{i}.attention_sub.norm": "layers.{i}.attn_norm",
        "encoder.blocks.{i}.attention.qkv": "layers.{i}.attn.Wqkv",
        "encoder.blocks.{i}.attention.out": "layers.{i}.attn.Wo",
        "encoder.blocks.{i}.ffn_sub.norm": "layers.{i}.mlp_norm",
        "encoder.blocks.{i}.ffn.up": "layers.{i}.mlp.Wi",
        "encoder.blocks.{i}.ffn.down": "layers.{i}.mlp.Wo",
        "encoder.norm": "final_norm",
    },
    ignored=BUFFERS,
    heads=(
        HeadTable("ModernBertModel"),
        task_head("ModernBert", "mlm", MLM, {**HEAD, "head.out": "decoder"}),
        task_head("ModernBert", "classify", POOLED, CLASSIFIER),
        task_head("ModernBert", "choice", POOLED, CLASSIFIER),
        task_head("ModernBert", "tag", DENSE, CLASSIFIER),
        task_head("ModernBert", "span", DENSE, CLASSIFIER),
    ),
)
