"""Llama, Mistral, Qwen2, Qwen3: pre-norm decoders with RMSNorm, rotary positions, SwiGLU, grouped key/value heads."""

from typing import Any

from qkv.models.tables.shared import BUFFERS, ROPE, SPECIAL, causal_heads
from qkv.models.tables.table import Architecture, Join, Json, Key, Names, Rows, Rule

GATES = {
    "silu": "swiglu",
    "gelu": "geglu",
    "gelu_pytorch_tanh": "geglu_tanh",
    "gelu_new": "geglu_tanh",
    "relu": "reglu",
}


def _read_bias(theirs: Json) -> str:
    attention, mlp = bool(theirs.get("attention_bias")), bool(theirs.get("mlp_bias"))
    if mlp and not attention:
        raise ValueError("mlp_bias without attention_bias is not supported")
    return "all" if mlp else "attention" if attention else "none"


def _write_bias(value: str, stack: Any) -> Json:
    return {"attention_bias": value in ("all", "attention"), "mlp_bias": value == "all"}


def _head_width(theirs: Json) -> int:
    return int(theirs.get("head_dim") or int(theirs["hidden_size"]) // int(theirs["num_attention_heads"]))


STACK: Rows = {
    **ROPE,
    "vocab": Key("vocab_size", 32000),
    "width": Key("hidden_size", 4096),
    "layers": Key("num_hidden_layers", 32),
    "heads": Key("num_attention_heads", 32),
    "kv_heads": Rule(
        lambda theirs: int(theirs.get("num_key_value_heads") or theirs["num_attention_heads"]),
        lambda value, stack: {"num_key_value_heads": value},
    ),
    "head_width": Rule(_head_width, lambda value, stack: {"head_dim": value}),
    "ffn_width": Key("intermediate_size", 11008),
    "max_positions": Key("max_position_embeddings", 2048),
    "norm": "rmsnorm",
    "norm_place": "pre",
    "norm_affine": "gain",
    "norm_eps": Key("rms_norm_eps", 1e-6),
    "feedforward": Key("hidden_act", "silu", GATES),
    "bias": Rule(_read_bias, _write_bias),
    "attention_dropout": Key("attention_dropout", 0.0),
    "init_std": Key("initializer_range", 0.02),
}
LAYER = "layers.{i}"
BODY: Names = {
    "embedding.token": "embed_tokens",
    "decoder.blocks.{i}.attention_sub.norm": f"{LAYER}.input_layernorm",
    "decoder.blocks.{i}.attention.qkv": Join(*(f"{LAYER}.self_attn.{part}_proj" for part in "qkv")),
    "decoder.blocks.{i}.attention.out": f"{LAYER}.self_attn.o_proj",
    "decoder.blocks.{i}.ffn_sub.norm": f"{LAYER}.post_attention_layernorm",
    "decoder.blocks.{i}.ffn.up": Join(f"{LAYER}.mlp.gate_proj", f"{LAYER}.mlp.up_proj"),
    "decoder.blocks.{i}.ffn.down": f"{LAYER}.mlp.down_proj",
    "decoder.norm": "norm",
}


def decoder(
    name: str, title: str, rows: Rows, *, names: Names | None = None, qa_prefix: str | None = None
) -> Architecture:
    """One of this family; `rows` says what it does differently."""
    return Architecture(
        name=name,
        prefix="model.",
        stacks={"decoder": {**STACK, **rows}},
        config=SPECIAL,
        body={**BODY, **(names or {})},
        ignored=BUFFERS,
        heads=causal_heads(title, base=f"{title}Model", token="score", qa_prefix=qa_prefix),
    )


def _farthest(window: int) -> int:
    """Their window counts the token itself; ours is the farthest distance seen, where 0 would be no limit at all."""
    if window < 2:
        raise ValueError(f"sliding_window = {window} is not supported: a token must see at least one other")
    return int(window) - 1


MISTRAL_WINDOW = Rule(
    lambda theirs: _farthest(theirs.get("sliding_window", 4096)) if theirs.get("sliding_window", 4096) else 0,
    lambda value, stack: {"sliding_window": value + 1 if value else None},
)


def _read_window(theirs: Json) -> int:
    on = theirs.get("use_sliding_window") and theirs.get("sliding_window")
    return _farthest(theirs["sliding_window"]) if on and _read_windowed(theirs) != _NONE else 0


_NONE = (-1,)


def _read_windowed(theirs: Json) -> tuple[int, ...]:
    layers = int(theirs.get("num_hidden_layers", 32))
    if not (theirs.get("use_sliding_window") and theirs.get("sliding_window")):
        return ()
    kinds = theirs.get("layer_types")
    if kinds:
        local = tuple(i for i, kind in enumerate(kinds) if kind == "sliding_attention")
    else:
        local = tuple(range(int(theirs.get("max_window_layers", 28)), layers))
    return () if len(local) == layers else local or _NONE


def _write_windowed(value: tuple[int, ...], stack: Any) -> Json:
    local = [bool(stack.window_of(i)) for i in range(stack.layers)]
    return {
        "use_sliding_window": any(local),
        "sliding_window": stack.window + 1 if any(local) else None,
        "max_window_layers": local.index(True) if any(local) else stack.layers,
        "layer_types": ["sliding_attention" if windowed else "full_attention" for windowed in local],
    }


QWEN_WINDOW: Rows = {
    "window": Rule(_read_window, lambda value, stack: {}),
    "windowed_layers": Rule(
        lambda theirs: () if _read_windowed(theirs) == _NONE else _read_windowed(theirs), _write_windowed
    ),
}
QWEN: Rows = {
    **QWEN_WINDOW,
    "vocab": Key("vocab_size", 151936),
    "ffn_width": Key("intermediate_size", 22016),
    "max_positions": Key("max_position_embeddings", 32768),
}

LLAMA = decoder("llama", "Llama", {}, qa_prefix="transformer.")
MISTRAL = decoder(
    "mistral",
    "Mistral",
    {
        "ffn_width": Key("intermediate_size", 14336),
        "max_positions": Key("max_position_embeddings", 131072),
        "bias": "none",
        "window": MISTRAL_WINDOW,
    },
)
QWEN2 = decoder("qwen2", "Qwen2", {**QWEN, "bias": "qkv"}, qa_prefix="transformer.")
QWEN3 = decoder(
    "qwen3",
    "Qwen3",
    {**QWEN, "bias": Key("attention_bias", False, {True: "attention", False: "none"}), "qk_norm": "head"},
    names={
        "decoder.blocks.{i}.attention.q_norm": f"{LAYER}.self_attn.q_norm",
        "decoder.blocks.{i}.attention.k_norm": f"{LAYER}.self_attn.k_norm",
    },
    qa_prefix="transformer.",
)
