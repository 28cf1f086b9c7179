"""Llama, Mistral, Qwen2, Qwen3: pre-norm decoders with RMSNorm, rotary positions, SwiGLU, grouped key/value heads."""

from typing import Any

from qkv.models.tables.architecture import (
    Architecture,
    ComputedField,
    Concatenated,
    ConfigKey,
    FieldRows,
    Json,
    TensorNames,
)
from qkv.models.tables.common_rows import (
    BUFFERS,
    GATED_ACTIVATION_NAMES,
    ROPE,
    SPECIAL_TOKENS,
    decoder_head_tables,
    read_bias,
    write_bias,
)

STACK: FieldRows = {
    **ROPE,
    "vocab_size": ConfigKey("vocab_size", 32000),
    "width": ConfigKey("hidden_size", 4096),
    "layers": ConfigKey("num_hidden_layers", 32),
    "heads": ConfigKey("num_attention_heads", 32),
    "kv_heads": ComputedField(
        lambda theirs: int(theirs.get("num_key_value_heads") or theirs["num_attention_heads"]),
        lambda value, stack: {"num_key_value_heads": value},
    ),
    "head_dim": ComputedField(
        lambda theirs: int(theirs.get("head_dim") or int(theirs["hidden_size"]) // int(theirs["num_attention_heads"])),
        lambda value, stack: {"head_dim": value},
    ),
    "ffn_width": ConfigKey("intermediate_size", 11008),
    "max_positions": ConfigKey("max_position_embeddings", 2048),
    "norm": "rmsnorm",
    "norm_placement": "pre",
    "norm_affine": "gain",
    "norm_eps": ConfigKey("rms_norm_eps", 1e-6),
    "feedforward": ConfigKey("hidden_act", "silu", GATED_ACTIVATION_NAMES),
    "bias": ComputedField(read_bias, write_bias),
    "attention_dropout": ConfigKey("attention_dropout", 0.0),
    "init_std": ConfigKey("initializer_range", 0.02),
}
LAYER = "layers.{i}"
BODY: TensorNames = {
    "embedding.token": "embed_tokens",
    "decoder.blocks.{i}.attention_sub.norm": f"{LAYER}.input_layernorm",
    "decoder.blocks.{i}.attention.qkv": Concatenated(*(f"{LAYER}.self_attn.{part}_proj" for part in "qkv")),
    "decoder.blocks.{i}.attention.out": f"{LAYER}.self_attn.o_proj",
    "decoder.blocks.{i}.ffn_sub.norm": f"{LAYER}.post_attention_layernorm",
    "decoder.blocks.{i}.ffn.up": Concatenated(f"{LAYER}.mlp.gate_proj", f"{LAYER}.mlp.up_proj"),
    "decoder.blocks.{i}.ffn.down": f"{LAYER}.mlp.down_proj",
    "decoder.norm": "norm",
}


QK_NORMS: TensorNames = {
    f"decoder.blocks.{{i}}.attention.{name}": f"{LAYER}.self_attn.{name}" for name in ("q_norm", "k_norm")
}


def llama_architecture(
    name: str, class_prefix: str, rows: FieldRows, *, names: TensorNames | None = None, qa_prefix: str | None = None
) -> Architecture:
    """Return an architecture of this family. `rows` and `names` override the rows and names of Llama."""
    return Architecture(
        name=name,
        prefix="model.",
        stacks={"decoder": {**STACK, **rows}},
        config=SPECIAL_TOKENS,
        body={**BODY, **(names or {})},
        ignored=BUFFERS,
        heads=decoder_head_tables(class_prefix, token="score", qa_prefix=qa_prefix),
    )


def _max_distance(window: int) -> int:
    """Convert their window, which counts the token itself, to our maximum distance, where 0 means no limit."""
    if window < 2:
        raise ValueError(f"sliding_window = {window} is not supported: it must be at least 2")
    return int(window) - 1


MISTRAL_WINDOW = ComputedField(
    lambda theirs: _max_distance(theirs.get("sliding_window", 4096)) if theirs.get("sliding_window", 4096) else 0,
    lambda value, stack: {"sliding_window": value + 1 if value else None},
)


def _read_window(theirs: Json) -> int:
    on = theirs.get("use_sliding_window") and theirs.get("sliding_window")
    return _max_distance(theirs["sliding_window"]) if on and _read_sliding_layers(theirs) != _NO_SLIDING_LAYERS else 0


_NO_SLIDING_LAYERS = (-1,)  # not (), which means all layers


def _read_sliding_layers(theirs: Json) -> tuple[int, ...]:
    layers = int(theirs.get("num_hidden_layers", 32))
    if not (theirs.get("use_sliding_window") and theirs.get("sliding_window")):
        return ()
    kinds = theirs.get("layer_types")
    if kinds:
        local = tuple(i for i, kind in enumerate(kinds) if kind == "sliding_attention")
    else:
        local = tuple(range(int(theirs.get("max_window_layers", 28)), layers))
    return () if len(local) == layers else local or _NO_SLIDING_LAYERS


def _write_sliding_layers(value: tuple[int, ...], stack: Any) -> Json:
    local = [bool(stack.window_of(i)) for i in range(stack.layers)]
    return {
        "use_sliding_window": any(local),
        "sliding_window": stack.sliding_window + 1 if any(local) else None,
        "max_window_layers": local.index(True) if any(local) else stack.layers,
        "layer_types": ["sliding_attention" if windowed else "full_attention" for windowed in local],
    }


QWEN_WINDOW: FieldRows = {
    "sliding_window": ComputedField(_read_window, lambda value, stack: {}),
    "sliding_window_layers": ComputedField(
        lambda theirs: () if _read_sliding_layers(theirs) == _NO_SLIDING_LAYERS else _read_sliding_layers(theirs),
        _write_sliding_layers,
    ),
}
QWEN: FieldRows = {
    **QWEN_WINDOW,
    "vocab_size": ConfigKey("vocab_size", 151936),
    "ffn_width": ConfigKey("intermediate_size", 22016),
    "max_positions": ConfigKey("max_position_embeddings", 32768),
}

LLAMA = llama_architecture("llama", "Llama", {}, qa_prefix="transformer.")
MISTRAL = llama_architecture(
    "mistral",
    "Mistral",
    {
        "ffn_width": ConfigKey("intermediate_size", 14336),
        "max_positions": ConfigKey("max_position_embeddings", 131072),
        "bias": "none",
        "sliding_window": MISTRAL_WINDOW,
    },
)
QWEN2 = llama_architecture("qwen2", "Qwen2", {**QWEN, "bias": "qkv"}, qa_prefix="transformer.")
QWEN3 = llama_architecture(
    "qwen3",
    "Qwen3",
    {**QWEN, "bias": ConfigKey("attention_bias", False, {True: "attention", False: "none"}), "qk_norm": "head"},
    names=QK_NORMS,
    qa_prefix="transformer.",
)
