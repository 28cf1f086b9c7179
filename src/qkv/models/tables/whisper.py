"""Whisper (Radford et al. 2022): an encoder of log-mel frames and a decoder of texts, both pre-norm.

Its key projections have no bias. A bias of the keys adds the same number to all scores of a query, so the softmax does
not depend on it: ours is 0 after reading, and is left out when a folder is written.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from qkv.blocks import StackConfig
from qkv.models.tables.architecture import (
    Architecture,
    ComputedField,
    Concatenated,
    ConfigKey,
    FieldRows,
    HeadTable,
    Json,
    NoTensor,
    TensorNames,
)
from qkv.models.tables.bart import stack_rows
from qkv.models.tables.common_rows import SPECIAL_TOKENS_SEQ2SEQ
from qkv.sounds.config import LogMelConfig

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class WithoutKeyBias:
    """A row for our bias of queries, keys and values, or of keys and values; they have none for the keys."""

    modules: tuple[str, ...]

    def read(self, parts: "list[Tensor]", suffix: str, stack: StackConfig) -> "Tensor":
        """Their biases, with zeros for the keys before those of the values."""
        import torch

        return torch.cat([*parts[:-1], torch.zeros_like(parts[-1]), parts[-1]])

    def write(self, ours: "Tensor", suffix: str, stack: StackConfig) -> "list[Tensor]":
        """Our bias without that of the keys."""
        split = list(ours.chunk(len(self.modules) + 1))
        return [part.contiguous() for part in (*split[:-2], split[-1])]


def make_stack(side: str, theirs: str) -> FieldRows:
    """The rows of a stack, with the sizes of Whisper tiny as defaults. `theirs` is their name for its positions."""
    rows = {name: row for name, row in stack_rows(side).items() if name not in ("position_offset", "vocab_size")}
    return {
        **rows,
        "width": ConfigKey("d_model", 384),
        "layers": ConfigKey(f"{side}_layers", 4),
        "heads": ConfigKey(f"{side}_attention_heads", 6),
        "ffn_width": ConfigKey(f"{side}_ffn_dim", 1536),
        "max_positions": ConfigKey(f"max_{theirs}_positions", 1500 if side == "encoder" else 448),
        "dropout": ConfigKey("dropout", 0.0),
        "norm_placement": "pre",
        "embedding_norm": "none",
    }


def read_front_end(theirs: Json) -> tuple[LogMelConfig, ...]:
    """The front end, from the number of mel bands."""
    return (LogMelConfig(mels=int(theirs.get("num_mel_bins", 80)), stride=2, positions="sinusoidal"),)


def write_front_end(value: tuple[Any, ...], config: Any) -> Json:
    """The number of mel bands of the front end; a front end with other settings gives another one when it is read."""
    return {"num_mel_bins": value[0].mels} if value and isinstance(value[0], LogMelConfig) else {}


def name_attention(ours: str, theirs: str) -> TensorNames:
    """The names of a self-attention."""
    weights, biases = (tuple(f"{theirs}.{part}_proj.{kind}" for part in "qkv") for kind in ("weight", "bias"))
    return {
        f"{ours}.qkv.weight": Concatenated(*weights),
        f"{ours}.qkv.bias": WithoutKeyBias((biases[0], biases[2])),
        f"{ours}.out": f"{theirs}.out_proj",
    }


def name_blocks(side: str) -> TensorNames:
    """The names of the blocks of a stack."""
    ours, theirs = f"{side}.blocks.{{i}}", f"{side}.layers.{{i}}"
    return {
        **name_attention(f"{ours}.attention", f"{theirs}.self_attn"),
        f"{ours}.attention_sub.norm": f"{theirs}.self_attn_layer_norm",
        f"{ours}.ffn.up": f"{theirs}.fc1",
        f"{ours}.ffn.down": f"{theirs}.fc2",
        f"{ours}.ffn_sub.norm": f"{theirs}.final_layer_norm",
        f"{side}.norm": f"{side}.layer_norm",
    }


CROSS = "decoder.layers.{i}.encoder_attn"
WHISPER = Architecture(
    name="whisper",
    prefix="model.",
    stacks={
        "encoder": {**make_stack("encoder", "source"), "vocab_size": 0, "position": "none"},
        "decoder": {**make_stack("decoder", "target"), "vocab_size": ConfigKey("vocab_size", 51865)},
    },
    config={
        **SPECIAL_TOKENS_SEQ2SEQ,
        "share_embeddings": False,
        "front_ends": ComputedField(read_front_end, write_front_end),
    },
    supported_values={"median_filter_width": (7,)},
    body={
        "source_embedding.token": NoTensor(),
        "front_ends.log-mel.first": "encoder.conv1",
        "front_ends.log-mel.second": "encoder.conv2",
        "target_embedding.token": "decoder.embed_tokens",
        "target_embedding.position": "decoder.embed_positions",
        **name_blocks("encoder"),
        **name_blocks("decoder"),
        "decoder.blocks.{i}.cross.q": f"{CROSS}.q_proj",
        "decoder.blocks.{i}.cross.kv.weight": Concatenated(f"{CROSS}.k_proj.weight", f"{CROSS}.v_proj.weight"),
        "decoder.blocks.{i}.cross.kv.bias": WithoutKeyBias((f"{CROSS}.v_proj.bias",)),
        "decoder.blocks.{i}.cross.out": f"{CROSS}.out_proj",
        "decoder.blocks.{i}.cross_sub.norm": f"{CROSS}_layer_norm",
    },
    ignored=("encoder.embed_positions.weight",),
    heads=(
        HeadTable(
            "WhisperForConditionalGeneration", {"kind": "lm", "tied": True}, {"head.out": "proj_out"}, "vocab_size"
        ),
        HeadTable("WhisperModel"),
    ),
)
