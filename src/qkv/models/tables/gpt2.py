"""GPT-2: a pre-norm decoder with learned positions. Its matrices are stored (in, out)."""

from qkv.models.tables.architecture import Architecture, ComputedField, ConfigKey, HeadTable, Renamed
from qkv.models.tables.common_rows import ACTIVATIONS_AND_ALIASES, BUFFERS, SPECIAL_TOKENS, task_head

GPT2 = Architecture(
    name="gpt2",
    prefix="transformer.",
    stacks={
        "decoder": {
            "vocab_size": ConfigKey("vocab_size", 50257),
            "width": ConfigKey("n_embd", 768),
            "layers": ConfigKey("n_layer", 12),
            "heads": ConfigKey("n_head", 12),
            "ffn_width": ComputedField(
                lambda theirs: int(theirs.get("n_inner") or 4 * int(theirs.get("n_embd", 768))),
                lambda value, stack: {"n_inner": None if value == 4 * stack.width else value},
            ),
            "position": "learned",
            "max_positions": ConfigKey("n_positions", 1024),
            "norm_placement": "pre",
            "norm_eps": ConfigKey("layer_norm_epsilon", 1e-5),
            "feedforward": ConfigKey("activation_function", "gelu_new", ACTIVATIONS_AND_ALIASES),
            "score_scale": ConfigKey("scale_attn_weights", True, {True: "sqrt", False: "none"}),
            "dropout": ComputedField(
                lambda theirs: float(theirs.get("resid_pdrop", 0.1)),
                lambda value, stack: {"resid_pdrop": value, "embd_pdrop": value},
            ),
            "attention_dropout": ConfigKey("attn_pdrop", 0.1),
            "init": "scaled",
            "init_std": ConfigKey("initializer_range", 0.02),
        }
    },
    config=SPECIAL_TOKENS,
    supported_values={"scale_attn_by_inverse_layer_idx": (False,), "add_cross_attention": (False,)},
    body={
        "embedding.token": "wte",
        "embedding.position": "wpe",
        "decoder.blocks.{i}.attention_sub.norm": "h.{i}.ln_1",
        "decoder.blocks.{i}.attention.qkv": Renamed("h.{i}.attn.c_attn", transposed=True),
        "decoder.blocks.{i}.attention.out": Renamed("h.{i}.attn.c_proj", transposed=True),
        "decoder.blocks.{i}.ffn_sub.norm": "h.{i}.ln_2",
        "decoder.blocks.{i}.ffn.up": Renamed("h.{i}.mlp.c_fc", transposed=True),
        "decoder.blocks.{i}.ffn.down": Renamed("h.{i}.mlp.c_proj", transposed=True),
        "decoder.norm": "ln_f",
    },
    ignored=BUFFERS,
    heads=(
        HeadTable("GPT2Model"),
        HeadTable(
            "GPT2LMHeadModel",
            {"kind": "lm", "tied": ConfigKey("tie_word_embeddings", True)},
            {"head.out": "lm_head"},
            "vocab_size",
        ),
        task_head("GPT2", "classify", {"pool": "last"}, {"head.out": "score"}),
        task_head("GPT2", "tag"),
        task_head("GPT2", "span"),
    ),
)
