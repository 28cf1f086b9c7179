"""GPT-NeoX and Pythia: attention and feed-forward in parallel, rotary positions on a quarter of each head."""

from qkv.models.tables.architecture import Architecture, ComputedField, ConfigKey, InterleavedQkv
from qkv.models.tables.common_rows import (
    ACTIVATIONS_AND_ALIASES,
    BUFFERS,
    ROPE_PARTIAL,
    SPECIAL_TOKENS,
    decoder_head_tables,
)

GPT_NEOX = Architecture(
    name="gpt_neox",
    prefix="gpt_neox.",
    stacks={
        "decoder": {
            **ROPE_PARTIAL,
            "rotary_fraction": ComputedField(
                lambda theirs: ROPE_PARTIAL["rotary_fraction"].read({"rotary_pct": 0.25, **theirs}),
                lambda value, stack: {"rotary_pct": value, "rotary_emb_base": stack.rotary_base},
            ),
            "vocab_size": ConfigKey("vocab_size", 50432),
            "width": ConfigKey("hidden_size", 6144),
            "layers": ConfigKey("num_hidden_layers", 44),
            "heads": ConfigKey("num_attention_heads", 64),
            "ffn_width": ConfigKey("intermediate_size", 24576),
            "max_positions": ConfigKey("max_position_embeddings", 2048),
            "norm_placement": "pre",
            "norm_eps": ConfigKey("layer_norm_eps", 1e-5),
            "feedforward": ConfigKey("hidden_act", "gelu", ACTIVATIONS_AND_ALIASES),
            "residual": ConfigKey("use_parallel_residual", True, {True: "parallel", False: "serial"}),
            "dropout": ConfigKey("hidden_dropout", 0.0),
            "attention_dropout": ConfigKey("attention_dropout", 0.0),
            "init_std": ConfigKey("initializer_range", 0.02),
        }
    },
    config=SPECIAL_TOKENS,
    supported_values={"attention_bias": (True,)},
    body={
        "embedding.token": "embed_in",
        "decoder.blocks.{i}.attention_sub.norm": "layers.{i}.input_layernorm",
        "decoder.blocks.{i}.attention.qkv": InterleavedQkv("layers.{i}.attention.query_key_value"),
        "decoder.blocks.{i}.attention.out": "layers.{i}.attention.dense",
        "decoder.blocks.{i}.ffn_sub.norm": "layers.{i}.post_attention_layernorm",
        "decoder.blocks.{i}.ffn.up": "layers.{i}.mlp.dense_h_to_4h",
        "decoder.blocks.{i}.ffn.down": "layers.{i}.mlp.dense_4h_to_h",
        "decoder.norm": "final_layer_norm",
    },
    aliases={"lm_head.weight": ("embed_out.weight",)},
    ignored=BUFFERS,
    heads=decoder_head_tables("GPTNeoX", token="classifier"),
)
