"""ESM: pre-norm encoders of proteins. ESM-2 has rotary positions, ESM-1b learned ones."""

from qkv.models.tables.architecture import (
    Architecture,
    ComputedField,
    ConfigKey,
    FieldRows,
    HeadTable,
    Json,
    TensorNames,
)
from qkv.models.tables.bert import BODY as BERT_BODY
from qkv.models.tables.bert import DENSE_CLASSIFIER, MLM, POOLED, POOLER, STACK, TAG
from qkv.models.tables.common_rows import BUFFERS, SPECIAL_TOKENS, task_head

LAYER = "encoder.layer.{i}"


def _is_rotary(theirs: Json) -> bool:
    return bool(theirs.get("position_embedding_type") == "rotary")


def _read_offset(theirs: Json) -> int:
    """Position 0 is row pad + 1 of the table of learned positions, as in RoBERTa."""
    pad = theirs.get("pad_token_id")
    return 0 if _is_rotary(theirs) else (1 if pad is None else int(pad)) + 1


ESM_STACK: FieldRows = {
    **{name: row for name, row in STACK.items() if name not in ("token_types", "feedforward")},
    "vocab_size": ConfigKey("vocab_size", 33),
    "position": ConfigKey("position_embedding_type", "absolute", {"rotary": "rotary", "absolute": "learned"}),
    "rotary_base": ConfigKey("rope_theta", 10_000.0),
    "position_offset": ComputedField(_read_offset, lambda value, stack: {}),
    "max_positions": ComputedField(
        lambda theirs: int(theirs.get("max_position_embeddings", 1026)) - _read_offset(theirs),
        lambda value, stack: {"max_position_embeddings": value + stack.position_offset},
    ),
    "norm_placement": "pre",
    "embedding_norm": ConfigKey("emb_layer_norm_before", False, {False: "none", True: "extra"}),
    "feedforward": "gelu",
    "embedding_scale": ConfigKey("token_dropout", False, {True: "unmasked", False: "none"}),
    "mask_token_id": ConfigKey("mask_token_id", None),
}
BODY: TensorNames = {
    **{name: rule for name, rule in BERT_BODY.items() if name not in ("embedding.types", "embedding.norm")},
    "embedding.norm": "embeddings.layer_norm",
    "encoder.blocks.{i}.attention_sub.norm": f"{LAYER}.attention.LayerNorm",
    "encoder.blocks.{i}.ffn_sub.norm": f"{LAYER}.LayerNorm",
    "encoder.norm": "encoder.emb_layer_norm_after",
}
PREDICTIONS: TensorNames = {
    "head.dense": "lm_head.dense",
    "head.norm": "lm_head.layer_norm",
    "head.out": "lm_head.decoder",
    "head.out.bias": "lm_head.bias",
}
ESM = Architecture(
    name="esm",
    prefix="esm.",
    stacks={"encoder": ESM_STACK},
    config=SPECIAL_TOKENS,
    supported_values={
        "is_decoder": (False,),
        "add_cross_attention": (False,),
        "is_folding_model": (False,),
        "hidden_act": ("gelu",),
        "position_embedding_type": ("absolute", "rotary"),
    },
    body=BODY,
    aliases={"lm_head.decoder.bias": ("lm_head.bias",)},
    ignored=(*BUFFERS, "*rotary_embeddings.inv_freq"),
    other_heads=("*contact_head.*",),
    heads=(
        HeadTable("EsmModel", {"kind": "embed", "dense": "tanh"}, POOLER),
        task_head("Esm", "mlm", {**MLM, "dense": "gelu"}, PREDICTIONS),
        task_head("Esm", "classify", {**POOLED, "dropout": ConfigKey("hidden_dropout_prob", 0.1)}, DENSE_CLASSIFIER),
        task_head("Esm", "tag", {**TAG, "dropout": ConfigKey("hidden_dropout_prob", 0.1)}),
    ),
)
