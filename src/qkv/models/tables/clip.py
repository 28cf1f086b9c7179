"""CLIP (Radford et al. 2021): an encoder of images and a causal encoder of texts, whose vectors are compared.

The two towers are two models, because they have different widths. A folder of both has them as
`FOLDER/vision_model` and `FOLDER/text_model`.
"""

from typing import Any

from qkv.models.tables.architecture import (
    Architecture,
    Concatenated,
    ConfigKey,
    FieldRows,
    HeadTable,
    Json,
    NoTensor,
    TensorNames,
)
from qkv.models.tables.common_rows import ACTIVATIONS_AND_ALIASES, BUFFERS, SPECIAL_TOKENS
from qkv.models.tables.image_rows import ConvKernel, ReshapedTable, patches_row

PROCESSOR = {
    "image_processor_type": "CLIPImageProcessor",
    "resample": 3,
    "do_center_crop": True,
    "image_mean": [0.48145466, 0.4578275, 0.40821073],
    "image_std": [0.26862954, 0.26130258, 0.27577711],
}
ACTIVATIONS = {"quick_gelu": "quick_gelu", **ACTIVATIONS_AND_ALIASES}
TOWERS = {
    "vision_model": ("clip_vision_model", "vision_config", "CLIPVisionModelWithProjection"),
    "text_model": ("clip_text_model", "text_config", "CLIPTextModelWithProjection"),
}
"""The prefix of the tensors of each tower: its architecture, its key in config.json, and its class."""


def make_stack_rows(width: int, heads: int, ffn_width: int) -> FieldRows:
    """The rows of a tower, with the sizes of CLIP ViT-B/32 as defaults."""
    return {
        "width": ConfigKey("hidden_size", width),
        "layers": ConfigKey("num_hidden_layers", 12),
        "heads": ConfigKey("num_attention_heads", heads),
        "ffn_width": ConfigKey("intermediate_size", ffn_width),
        "norm_placement": "pre",
        "norm_eps": ConfigKey("layer_norm_eps", 1e-5),
        "feedforward": ConfigKey("hidden_act", "quick_gelu", ACTIVATIONS),
        "attention_dropout": ConfigKey("attention_dropout", 0.0),
        "init_std": ConfigKey("initializer_range", 0.02),
    }


def name_blocks(stack: str) -> TensorNames:
    """The names of the blocks of a tower."""
    ours, theirs = f"{stack}.blocks.{{i}}", "encoder.layers.{i}"
    return {
        f"{ours}.attention_sub.norm": f"{theirs}.layer_norm1",
        f"{ours}.attention.qkv": Concatenated(*(f"{theirs}.self_attn.{part}_proj" for part in "qkv")),
        f"{ours}.attention.out": f"{theirs}.self_attn.out_proj",
        f"{ours}.ffn_sub.norm": f"{theirs}.layer_norm2",
        f"{ours}.ffn.up": f"{theirs}.mlp.fc1",
        f"{ours}.ffn.down": f"{theirs}.mlp.fc2",
    }


def projected_head(name: str, pool: str, module: str, prefix: str) -> HeadTable:
    """The head that projects the pooled vector of a tower."""
    fields: FieldRows = {"kind": "embed", "pool": pool, "outputs": ConfigKey("projection_dim", 512)}
    return HeadTable(f"CLIP{name}ModelWithProjection", fields, {"head.out": module}, "fields", prefix)


def split_config(theirs: Json, tower: str) -> Json:
    """The config.json of one tower of a folder with both."""
    model_type, key, class_name = TOWERS[tower]
    own: Any = theirs.get(key) or {}
    shared = {"projection_dim": theirs.get("projection_dim", 512)}
    return {**own, **shared, "model_type": model_type, "architectures": [class_name]}


VISION = Architecture(
    name="clip_vision_model",
    prefix="vision_model.",
    stacks={
        "encoder": {**make_stack_rows(768, 12, 3072), "vocab_size": 0, "position": "none", "embedding_norm": "none"}
    },
    config={"front_ends": patches_row(PROCESSOR, patch_size=32, bias=False, norm=True)},
    supported_values={"num_channels": (3,)},
    body={
        "embedding.token": NoTensor(),
        "front_ends.patches.class_token.weight": ReshapedTable("embeddings.class_embedding", is_vector=True),
        "front_ends.patches.position": "embeddings.position_embedding",
        "front_ends.patches.project": ConvKernel("embeddings.patch_embedding"),
        "front_ends.patches.norm": "pre_layrnorm",
        **name_blocks("encoder"),
        "encoder.norm": "post_layernorm",
    },
    ignored=(*BUFFERS, "text_model.*", "text_projection.*", "logit_scale"),
    heads=(
        HeadTable("CLIPVisionModel", {"kind": "embed"}),
        projected_head("Vision", "first", "visual_projection", "vision_model."),
    ),
)
TEXT = Architecture(
    name="clip_text_model",
    prefix="text_model.",
    stacks={
        "decoder": {
            **make_stack_rows(512, 8, 2048),
            "vocab_size": ConfigKey("vocab_size", 49408),
            "position": "learned",
            "max_positions": ConfigKey("max_position_embeddings", 77),
        }
    },
    config=SPECIAL_TOKENS,
    body={
        "embedding.token": "embeddings.token_embedding",
        "embedding.position": "embeddings.position_embedding",
        **name_blocks("decoder"),
        "decoder.norm": "final_layer_norm",
    },
    ignored=(*BUFFERS, "vision_model.*", "visual_projection.*", "logit_scale"),
    heads=(HeadTable("CLIPTextModel"), projected_head("Text", "last", "text_projection", "text_model.")),
)
