"""GPT-NeoX and Pythia: attention and feed-forward side by side, a quarter of each head turning."""

from qkv.models.tables.shared import ACTIVATIONS_AND_ALIASES, BUFFERS, ROPE_PARTIAL, SPECIAL, causal_heads
from qkv.models.tables.table import Architecture, HeadMajor, Key, Rule

GPT_NEOX = Architecture(
    name="gpt_neox",
    prefix="gpt_neox.",
    stacks={
        "decoder": {
            **ROPE_PARTIAL,
            "rotary_share": Rule(
                lambda theirs: ROPE_PARTIAL["rotary_share"].read({"rotary_pct": 0.25, **theirs}),
                lambda value, stack: {"rotary_pct": value, "rotary_emb_base": stack.rotary_base},
            ),
            "vocab": Key("vocab_size", 50432),
            "width": Key("hidden_size", 6144),
            "layers": Key("num_hidden_layers", 44),
            "heads": Key("num_attention_heads", 64),
            "ffn_width": Key("intermediate_size", 24576),
            "max_positions": Key("max_position_embeddings", 2048),
            "norm_place": "pre",
            "norm_eps": Key("layer_norm_eps", 1e-5),
            "feedforward": Key("hidden_act", "gelu", ACTIVATIONS_AND_ALIASES),
            "residual": Key("use_parallel_residual", True, {True: "parallel", False: "serial"}),
            "dropout": Key("hidden_dropout", 0.0),
            "attention_dropout": Key("attention_dropout", 0.0),
            "init_std": Key("initializer_range", 0.02),
        }
    },
    config=SPECIAL,
    needs={"attention_bias": (True,)},
    body={
        "embedding.token": "embed_in",
        "decoder.blocks.{i}.attention_sub.norm": "layers.{i}.input_layernorm",
        "decoder.blocks.{i}.attention.qkv": HeadMajor("layers.{i}.attention.query_key_value"),
        "decoder.blocks.{i}.attention.out": "layers.{i}.attention.dense",
        "decoder.blocks.{i}.ffn_sub.norm": "layers.{i}.post_attention_layernorm",
        "decoder.blocks.{i}.ffn.up": "layers.{i}.mlp.dense_h_to_4h",
        "decoder.blocks.{i}.ffn.down": "layers.{i}.mlp.dense_4h_to_h",
        "decoder.norm": "final_layer_norm",
    },
    aliases={"lm_head.weight": ("embed_out.weight",)},
    ignored=BUFFERS,
    heads=causal_heads("GPTNeoX", base="GPTNeoXModel", token="classifier"),
)
