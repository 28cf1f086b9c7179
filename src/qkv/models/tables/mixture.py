"""Mixtral and Qwen3-MoE: Llama with a mixture of experts in place of each feed-forward.

The names are those of published folders; transformers converts them when it loads a folder.
"""

from dataclasses import replace

from qkv.models.tables.architecture import Architecture, ComputedField, Concatenated, ConfigKey, FieldRows, TensorNames
from qkv.models.tables.llama import LAYER, MISTRAL_WINDOW, QK_NORMS, QWEN_WINDOW, llama_architecture

MIXTURE: FieldRows = {
    "feedforward": ConfigKey("hidden_act", "silu", {"silu": "moe"}),
    "experts_per_token": ConfigKey("num_experts_per_tok", 2),
}


def mixture_architecture(
    name: str,
    class_prefix: str,
    rows: FieldRows,
    names: TensorNames,
    *,
    router: str,
    gate: str,
    up: str,
    down: str,
    qa_prefix: str | None = None,
) -> Architecture:
    """Return the table of a mixture of experts, with the names that it gives to its router and its experts."""
    ffn, block = f"{LAYER}.{router.rpartition('.')[0]}", "decoder.blocks.{i}.ffn"
    experts: TensorNames = {
        f"{block}.router": f"{LAYER}.{router}",
        f"{block}.experts.{{e}}.up": Concatenated(f"{ffn}.experts.{{e}}.{gate}", f"{ffn}.experts.{{e}}.{up}"),
        f"{block}.experts.{{e}}.down": f"{ffn}.experts.{{e}}.{down}",
    }
    return llama_architecture(name, class_prefix, {**MIXTURE, **rows}, names={**names, **experts}, qa_prefix=qa_prefix)


MIXTRAL = mixture_architecture(
    "mixtral",
    "Mixtral",
    {
        "ffn_width": ConfigKey("intermediate_size", 14336),
        "max_positions": ConfigKey("max_position_embeddings", 131072),
        "norm_eps": ConfigKey("rms_norm_eps", 1e-5),
        "sliding_window": MISTRAL_WINDOW,
        "experts": ConfigKey("num_local_experts", 8),
        "router_softmax": "chosen",
        "bias": "none",
    },
    {},
    router="block_sparse_moe.gate",
    gate="w1",
    up="w3",
    down="w2",
)
QWEN3_MOE = replace(
    mixture_architecture(
        "qwen3_moe",
        "Qwen3Moe",
        {
            **QWEN_WINDOW,
            "vocab_size": ConfigKey("vocab_size", 151936),
            "ffn_width": ConfigKey("moe_intermediate_size", 768),
            "max_positions": ConfigKey("max_position_embeddings", 32768),
            "bias": ConfigKey("attention_bias", False, {True: "attention", False: "none"}),
            "qk_norm": "head",
            "experts": ComputedField(  # transformers 5 writes the other name
                lambda theirs: int(theirs.get("num_local_experts") or theirs.get("num_experts", 128)),
                lambda value, stack: {"num_experts": value},
            ),
            "experts_per_token": ConfigKey("num_experts_per_tok", 8),
            "router_softmax": ConfigKey("norm_topk_prob", False, {True: "chosen", False: "all"}),
        },
        QK_NORMS,
        router="mlp.gate",
        gate="gate_proj",
        up="up_proj",
        down="down_proj",
        qa_prefix="transformer.",
    ),
    supported_values={"decoder_sparse_step": (1,), "mlp_only_layers": ([],)},
)
