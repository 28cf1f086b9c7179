"""ViT (Dosovitskiy et al. 2020): a pre-norm encoder of patches of an image, with a class token before them."""

from qkv.models.tables.architecture import (
    Architecture,
    ComputedField,
    Concatenated,
    ConfigKey,
    FieldRows,
    HeadTable,
    NoTensor,
    TensorNames,
)
from qkv.models.tables.bert import STACK
from qkv.models.tables.common_rows import ACTIVATIONS_AND_ALIASES
from qkv.models.tables.image_rows import ConvKernel, ReshapedTable, patches_row

PROCESSOR = {
    "image_processor_type": "ViTImageProcessor",
    "resample": 2,
    "image_mean": [0.5, 0.5, 0.5],
    "image_std": [0.5, 0.5, 0.5],
}
LEFT_OUT = ("token_types", "max_positions")  # of BERT's stack
VIT_STACK: FieldRows = {
    **{name: row for name, row in STACK.items() if name not in LEFT_OUT},
    "vocab_size": 0,
    "position": "none",
    "norm_placement": "pre",
    "embedding_norm": "none",
    "dropout": ConfigKey("hidden_dropout_prob", 0.0),
    "attention_dropout": ConfigKey("attention_probs_dropout_prob", 0.0),
    "feedforward": ConfigKey("hidden_act", "gelu", ACTIVATIONS_AND_ALIASES),
}
LAYER = "encoder.layer.{i}"
BODY: TensorNames = {
    "embedding.token": NoTensor(),
    "front_ends.patches.class_token.weight": ReshapedTable("embeddings.cls_token"),
    "front_ends.patches.position.weight": ReshapedTable("embeddings.position_embeddings"),
    "front_ends.patches.project": ConvKernel("embeddings.patch_embeddings.projection"),
    "encoder.blocks.{i}.attention_sub.norm": f"{LAYER}.layernorm_before",
    "encoder.blocks.{i}.attention.qkv": Concatenated(
        *(f"{LAYER}.attention.attention.{part}" for part in ("query", "key", "value"))
    ),
    "encoder.blocks.{i}.attention.out": f"{LAYER}.attention.output.dense",
    "encoder.blocks.{i}.ffn_sub.norm": f"{LAYER}.layernorm_after",
    "encoder.blocks.{i}.ffn.up": f"{LAYER}.intermediate.dense",
    "encoder.blocks.{i}.ffn.down": f"{LAYER}.output.dense",
    "encoder.norm": "layernorm",
}
HAS_POOLER = ComputedField(
    lambda theirs: "tanh" if "pooler.dense.weight" in theirs.get("_tensors", ["pooler.dense.weight"]) else "none",
    lambda value, head: {"_tensors": ["pooler.dense.weight"] if value == "tanh" else []},
)

VIT = Architecture(
    name="vit",
    prefix="vit.",
    stacks={"encoder": VIT_STACK},
    config={"front_ends": patches_row(PROCESSOR, patch_size=16, bias=True, norm=False)},
    supported_values={"qkv_bias": (True,), "num_channels": (3,), "pooler_act": ("tanh",)},
    body=BODY,
    ignored=("pooler.*",),
    heads=(
        HeadTable("ViTModel", {"kind": "embed", "dense": HAS_POOLER}, {"head.dense": "{prefix}pooler.dense"}),
        HeadTable(
            "ViTForImageClassification", {"kind": "classify", "bias": True}, {"head.out": "classifier"}, "labels"
        ),
    ),
)
