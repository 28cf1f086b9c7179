"""GPT-2: a pre-norm decoder with learned positions. Its matrices are stored (in, out)."""

from typing import Any

from qkv.models.tables.shared import ACTIVATIONS_AND_ALIASES, BUFFERS, SPECIAL
from qkv.models.tables.table import Architecture, HeadTable, Json, Key, Rule, Same


def _read_ffn(theirs: Json) -> int:
    return int(theirs.get("n_inner") or 4 * int(theirs.get("n_embd", 768)))


def _write_dropout(value: float, stack: Any) -> Json:
    return {"resid_pdrop": value, "embd_pdrop": value}


GPT2 = Architecture(
    name="gpt2",
    prefix="transformer.",
    stacks={
        "decoder": {
            "vocab": Key("vocab_size", 50257),
            "width": Key("n_embd", 768),
            "layers": Key("n_layer", 12),
            "heads": Key("n_head", 12),
            "ffn_width": Rule(_read_ffn, lambda value, stack: {"n_inner": None if value == 4 * stack.width else value}),
            "position": "learned",
            "max_positions": Key("n_positions", 1024),
            "norm_place": "pre",
            "norm_eps": Key("layer_norm_epsilon", 1e-5),
            "feedforward": Key("activation_function", "gelu_new", ACTIVATIONS_AND_ALIASES),
            "score_scale": Key("scale_attn_weights", True, {True: "sqrt", False: "none"}),
            "dropout": Rule(lambda theirs: float(theirs.get("resid_pdrop", 0.1)), _write_dropout),
            "attention_dropout": Key("attn_pdrop", 0.1),
            "init": "scaled",
            "init_std": Key("initializer_range", 0.02),
        }
    },
    config=SPECIAL,
    needs={"scale_attn_by_inverse_layer_idx": (False,), "add_cross_attention": (False,)},
    body={
        "embedding.token": "wte",
        "embedding.position": "wpe",
        "decoder.blocks.{i}.attention_sub.norm": "h.{i}.ln_1",
        "decoder.blocks.{i}.attention.qkv": Same("h.{i}.attn.c_attn", transposed=True),
        "decoder.blocks.{i}.attention.out": Same("h.{i}.attn.c_proj", transposed=True),
        "decoder.blocks.{i}.ffn_sub.norm": "h.{i}.ln_2",
        "decoder.blocks.{i}.ffn.up": Same("h.{i}.mlp.c_fc", transposed=True),
        "decoder.blocks.{i}.ffn.down": Same("h.{i}.mlp.c_proj", transposed=True),
        "decoder.norm": "ln_f",
    },
    ignored=BUFFERS,
    heads=(
        HeadTable("GPT2Model"),
        HeadTable(
            "GPT2LMHeadModel",
            {"kind": "lm", "tied": Key("tie_word_embeddings", True)},
            {"head.out": "lm_head"},
            "vocab",
        ),
        HeadTable(
            "GPT2ForSequenceClassification", {"kind": "classify", "pool": "last"}, {"head.out": "score"}, "labels"
        ),
        HeadTable("GPT2ForTokenClassification", {"kind": "tag", "bias": True}, {"head.out": "classifier"}, "labels"),
        HeadTable("GPT2ForQuestionAnswering", {"kind": "span", "bias": True}, {"head.out": "qa_outputs"}, 2),
    ),
)
