"""T5 (v1.0, v1.1) and mT5: RMSNorm, no biases, unscaled scores, relative positions in buckets.

v1.0 ties the output matrix to the embedding and scales its input by 1/√C. v1.1 and mT5 have gated feed-forward layers
and a separate output matrix.
"""

from typing import Any

from qkv.models.tables.architecture import (
    Architecture,
    ComputedField,
    Concatenated,
    Conditional,
    ConfigKey,
    FieldRows,
    HeadTable,
    Json,
    TensorNames,
)
from qkv.models.tables.common_rows import (
    BUFFERS,
    CLASSIFIER_SEQ2SEQ,
    CLASSIFY_SEQ2SEQ,
    SPECIAL_TOKENS_SEQ2SEQ,
    task_head,
)

UNGATED = {"relu": "relu", "gelu": "gelu", "gelu_new": "gelu_tanh", "silu": "silu"}
GATED = {"gated-gelu": "geglu_tanh", "gated-silu": "swiglu", "gated-relu": "reglu"}  # T5's gated GELU is the tanh form


def stack_rows(layers: Any, default_ffn: str) -> FieldRows:
    """The config rows of one stack; `default_ffn` is the default of `feed_forward_proj`."""
    return {
        "vocab_size": ConfigKey("vocab_size", 32128),
        "width": ConfigKey("d_model", 512),
        "layers": layers,
        "heads": ConfigKey("num_heads", 8),
        "head_dim": ConfigKey("d_kv", 64),
        "ffn_width": ConfigKey("d_ff", 2048),
        "position": "t5",
        "max_positions": ConfigKey("n_positions", 512),  # the training length: relative positions have no maximum
        "relative_buckets": ConfigKey("relative_attention_num_buckets", 32),
        "relative_max_distance": ConfigKey("relative_attention_max_distance", 128),
        "norm": "rmsnorm",
        "norm_placement": "pre",
        "norm_affine": "gain",
        "norm_eps": ConfigKey("layer_norm_epsilon", 1e-6),
        "feedforward": ConfigKey("feed_forward_proj", default_ffn, {**UNGATED, **GATED}),
        "bias": "none",
        "score_scale": "none",
        "dropout": ConfigKey("dropout_rate", 0.1),
        "attention_dropout": ConfigKey("dropout_rate", 0.1),
        "ffn_dropout": ConfigKey("dropout_rate", 0.1),
        "init": "t5",
    }


def stacks(default_ffn: str) -> dict[str, FieldRows]:
    """The config rows of both stacks."""
    decoder_layers = ComputedField(
        lambda theirs: int(theirs.get("num_decoder_layers") or theirs.get("num_layers", 6)),
        lambda value, stack: {"num_decoder_layers": value},
    )
    return {
        "encoder": stack_rows(ConfigKey("num_layers", 6), default_ffn),
        "decoder": stack_rows(decoder_layers, default_ffn),
    }


def _stack_tensor_names(ours: str, theirs: str, ffn_index: int) -> TensorNames:
    """The names of one stack; `ffn_index` is the index of the feed-forward among the sublayers of a block."""
    block = theirs + ".block.{i}.layer"
    return {
        f"{ours}.blocks.{{i}}.attention.qkv": Concatenated(*(f"{block}.0.SelfAttention.{part}" for part in "qkv")),
        f"{ours}.blocks.{{i}}.attention.out": f"{block}.0.SelfAttention.o",
        f"{ours}.blocks.{{i}}.attention_sub.norm": f"{block}.0.layer_norm",
        f"{ours}.blocks.{{i}}.ffn.up": Conditional(
            lambda config, stack: stack.feedforward in GATED.values(),
            Concatenated(f"{block}.{ffn_index}.DenseReluDense.wi_0", f"{block}.{ffn_index}.DenseReluDense.wi_1"),
            f"{block}.{ffn_index}.DenseReluDense.wi",
        ),
        f"{ours}.blocks.{{i}}.ffn.down": f"{block}.{ffn_index}.DenseReluDense.wo",
        f"{ours}.blocks.{{i}}.ffn_sub.norm": f"{block}.{ffn_index}.layer_norm",
        f"{ours}.bias.table": f"{theirs}.block.0.layer.0.SelfAttention.relative_attention_bias",
        f"{ours}.norm": f"{theirs}.final_layer_norm",
    }


CROSS = "decoder.block.{i}.layer.1"
BODY: TensorNames = {
    "source_embedding.token": "shared",
    "embedding.token": "shared",  # for the encoder-only classes
    **_stack_tensor_names("encoder", "encoder", 1),
    **_stack_tensor_names("decoder", "decoder", 2),
    "decoder.blocks.{i}.cross.q": f"{CROSS}.EncDecAttention.q",
    "decoder.blocks.{i}.cross.kv": Concatenated(f"{CROSS}.EncDecAttention.k", f"{CROSS}.EncDecAttention.v"),
    "decoder.blocks.{i}.cross.out": f"{CROSS}.EncDecAttention.o",
    "decoder.blocks.{i}.cross_sub.norm": f"{CROSS}.layer_norm",
}


def _read_tied(theirs: Json) -> bool:
    """Tied, unless the config says otherwise and the checkpoint contains lm_head.weight."""
    untied = theirs.get("tie_word_embeddings") is False or theirs.get("scale_decoder_outputs") is False
    return not (untied and "lm_head.weight" in theirs.get("_tensors", ("lm_head.weight",)))


def _read_tied_mt5(theirs: Json) -> bool:
    """Tied if the checkpoint has no lm_head.weight: transformers always writes `tie_word_embeddings: true`."""
    if "_tensors" in theirs:
        return "lm_head.weight" not in theirs["_tensors"]
    return bool(theirs.get("tie_word_embeddings", True))


TIED = ComputedField(_read_tied, lambda value, head: {"tie_word_embeddings": value})
SCALE = ComputedField(
    lambda theirs: "rsqrt" if theirs.get("scale_decoder_outputs", theirs.get("tie_word_embeddings", True)) else "none",
    lambda value, head: {"scale_decoder_outputs": value == "rsqrt"},
)


def _heads(class_prefix: str, lm: FieldRows) -> tuple[HeadTable, ...]:
    tag = {"bias": True, "dropout": ConfigKey("classifier_dropout", 0.0)}
    return (
        HeadTable(f"{class_prefix}Model"),
        HeadTable(
            f"{class_prefix}ForConditionalGeneration", {"kind": "lm", **lm}, {"head.out": "lm_head"}, "vocab_size"
        ),
        task_head(class_prefix, "classify", CLASSIFY_SEQ2SEQ, CLASSIFIER_SEQ2SEQ, prefix="transformer."),
        task_head(class_prefix, "span"),
        HeadTable(f"{class_prefix}EncoderModel", stacks=("encoder",)),
        task_head(class_prefix, "tag", tag, prefix="transformer.", stacks=("encoder",)),
    )


def _t5(name: str, class_prefix: str, default_ffn: str, lm: FieldRows) -> Architecture:
    return Architecture(
        name=name,
        stacks=stacks(default_ffn),
        config={
            **SPECIAL_TOKENS_SEQ2SEQ,
            "decoder_start_token_id": ConfigKey("decoder_start_token_id", 0),
            "share_embeddings": True,
        },
        body=BODY,
        aliases={"shared.weight": ("encoder.embed_tokens.weight", "decoder.embed_tokens.weight")},
        ignored=(*BUFFERS, "*EncDecAttention.relative_attention_bias.weight"),
        heads=_heads(class_prefix, lm),
    )


T5 = _t5("t5", "T5", "relu", {"tied": TIED, "scale": SCALE})
MT5 = _t5("mt5", "MT5", "gated-gelu", {"tied": ComputedField(_read_tied_mt5, TIED.write)})
