"""BART, mBART and Marian: encoder-decoders with full biases.

BART is post-norm with learned positions (from row 2 of the table on) and a norm after the embedding. mBART is pre-norm.
Marian is the 2017 Transformer, with sines before cosines.
"""

from qkv.models.tables.architecture import (
    Architecture,
    ComputedField,
    Concatenated,
    Conditional,
    ConfigKey,
    FieldRows,
    HeadTable,
    Renamed,
    TensorNames,
)
from qkv.models.tables.common_rows import (
    ACTIVATIONS_AND_ALIASES,
    BUFFERS,
    CLASSIFIER_SEQ2SEQ,
    CLASSIFY_SEQ2SEQ,
    SPECIAL_TOKENS_SEQ2SEQ,
    task_head,
)

FINAL_BIAS = "final_logits_bias"


def stack_rows(side: str) -> FieldRows:
    """The config rows of one stack; `side` is "encoder" or "decoder"."""
    return {
        "vocab_size": ConfigKey("vocab_size", 50265),
        "width": ConfigKey("d_model", 1024),
        "layers": ConfigKey(f"{side}_layers", 12),
        "heads": ConfigKey(f"{side}_attention_heads", 16),
        "ffn_width": ConfigKey(f"{side}_ffn_dim", 4096),
        "position": "learned",
        "max_positions": ConfigKey("max_position_embeddings", 1024),
        "position_offset": 2,
        "norm_placement": "post",
        "embedding_norm": "extra",
        "feedforward": ConfigKey("activation_function", "gelu", ACTIVATIONS_AND_ALIASES),
        "embedding_scale": ConfigKey("scale_embedding", False, {True: "sqrt", False: "none"}),
        "dropout": ConfigKey("dropout", 0.1),
        "attention_dropout": ConfigKey("attention_dropout", 0.0),
        "ffn_dropout": ConfigKey("activation_dropout", 0.0),
        "init_std": ConfigKey("init_std", 0.02),
    }


def _stack_tensor_names(side: str, embedding: str) -> TensorNames:
    layer = side + ".layers.{i}"
    return {
        f"{embedding}.position": f"{side}.embed_positions",
        f"{embedding}.norm": f"{side}.layernorm_embedding",
        f"{side}.blocks.{{i}}.attention.qkv": Concatenated(*(f"{layer}.self_attn.{part}_proj" for part in "qkv")),
        f"{side}.blocks.{{i}}.attention.out": f"{layer}.self_attn.out_proj",
        f"{side}.blocks.{{i}}.attention_sub.norm": f"{layer}.self_attn_layer_norm",
        f"{side}.blocks.{{i}}.ffn.up": f"{layer}.fc1",
        f"{side}.blocks.{{i}}.ffn.down": f"{layer}.fc2",
        f"{side}.blocks.{{i}}.ffn_sub.norm": f"{layer}.final_layer_norm",
        f"{side}.norm": f"{side}.layer_norm",
    }


CROSS = "decoder.layers.{i}.encoder_attn"
BODY: TensorNames = {
    "source_embedding.token": Conditional(
        lambda config, stack: config.share_embeddings, "shared", "encoder.embed_tokens"
    ),
    "target_embedding.token": "decoder.embed_tokens",
    **_stack_tensor_names("encoder", "source_embedding"),
    **_stack_tensor_names("decoder", "target_embedding"),
    "decoder.blocks.{i}.cross.q": f"{CROSS}.q_proj",
    "decoder.blocks.{i}.cross.kv": Concatenated(f"{CROSS}.k_proj", f"{CROSS}.v_proj"),
    "decoder.blocks.{i}.cross.out": f"{CROSS}.out_proj",
    "decoder.blocks.{i}.cross_sub.norm": f"{CROSS}_layer_norm",
}
LM: FieldRows = {"kind": "lm", "tied": ConfigKey("tie_word_embeddings", True), "bias": True}
LM_NAMES: TensorNames = {"head.out": "lm_head", "head.out.bias": Renamed(FINAL_BIAS, is_row_vector=True)}
ALIASES = {"shared.weight": ("encoder.embed_tokens.weight", "decoder.embed_tokens.weight")}


def _bart(name: str, class_prefix: str, rows: FieldRows) -> Architecture:
    return Architecture(
        name=name,
        prefix="model.",
        stacks={side: {**stack_rows(side), **rows} for side in ("encoder", "decoder")},
        config={**SPECIAL_TOKENS_SEQ2SEQ, "share_embeddings": True},
        supported_values={"is_decoder": (False,)},
        body=BODY,
        aliases=ALIASES,
        ignored=BUFFERS,
        optional_tensors=(FINAL_BIAS,),
        heads=(
            HeadTable(f"{class_prefix}Model"),
            HeadTable(f"{class_prefix}ForConditionalGeneration", LM, LM_NAMES, "vocab_size"),
            task_head(class_prefix, "classify", CLASSIFY_SEQ2SEQ, CLASSIFIER_SEQ2SEQ),
            task_head(class_prefix, "span"),
        ),
    )


BART = _bart("bart", "Bart", {})
MBART = _bart("mbart", "MBart", {"norm_placement": "pre"})

MARIAN_STACK: FieldRows = {"position": "sinusoidal_split", "position_offset": 0, "embedding_norm": "none"}
MARIAN = Architecture(
    name="marian",
    prefix="model.",
    stacks={
        "encoder": {**stack_rows("encoder"), **MARIAN_STACK, "vocab_size": ConfigKey("vocab_size", 58101)},
        "decoder": {
            **stack_rows("decoder"),
            **MARIAN_STACK,
            "vocab_size": ComputedField(
                lambda theirs: int(theirs.get("decoder_vocab_size") or theirs.get("vocab_size", 58101)),
                lambda value, stack: {"decoder_vocab_size": value},
            ),
        },
    },
    config={**SPECIAL_TOKENS_SEQ2SEQ, "share_embeddings": ConfigKey("share_encoder_decoder_embeddings", True)},
    supported_values={"is_decoder": (False,)},
    body=BODY,
    aliases=ALIASES,
    ignored=(*BUFFERS, "*embed_positions.weight"),
    optional_tensors=(FINAL_BIAS,),
    heads=(HeadTable("MarianModel"), HeadTable("MarianMTModel", LM, LM_NAMES, "vocab_size")),
)
