"""Convert the metadata and the tensor names of a GGUF file to the names of a Hugging Face folder.

The tables of `qkv.models.tables` then read both in the same way.
"""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from qkv.errors import QkvError, shorten, suggest_name
from qkv.models.tables.architecture import Json

_LLAMA_BLOCK = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_LLAMA_KEYS = {
    "embedding_length": "hidden_size",
    "block_count": "num_hidden_layers",
    "feed_forward_length": "intermediate_size",
    "context_length": "max_position_embeddings",
    "attention.head_count": "num_attention_heads",
    "attention.head_count_kv": "num_key_value_heads",
    "attention.key_length": "head_dim",
    "attention.layer_norm_rms_epsilon": "rms_norm_eps",
    "rope.freq_base": "rope_theta",
}
_LLAMA_TOP = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
ROPE_FACTORS = "rope_freqs.weight"
"""The tensor with the divisors of the rotary frequencies, in the files of Llama 3.1 and later."""


@dataclass(frozen=True)
class GgufArchitecture:
    """How the GGUF files of an architecture name the keys and tensors of a Hugging Face folder."""

    class_name: str
    keys: Mapping[str, str] = field(default_factory=lambda: _LLAMA_KEYS)  # of the metadata → of config.json
    top: Mapping[str, str] = field(default_factory=lambda: _LLAMA_TOP)  # tensors outside the blocks
    block_prefix: str = "model.layers."
    block: Mapping[str, str] = field(default_factory=lambda: _LLAMA_BLOCK)  # tensors of a block
    transposed: frozenset[str] = frozenset()  # matrices of a block that Hugging Face stores as (in, out)
    interleaved: bool = False  # whether the rotary pairs of queries and keys are next to each other


GGUF_ARCHITECTURES = {
    "llama": GgufArchitecture("LlamaForCausalLM", interleaved=True),
    "qwen2": GgufArchitecture("Qwen2ForCausalLM"),
    "qwen3": GgufArchitecture("Qwen3ForCausalLM"),
    "gpt2": GgufArchitecture(
        "GPT2LMHeadModel",
        keys={
            "embedding_length": "n_embd",
            "block_count": "n_layer",
            "feed_forward_length": "n_inner",
            "context_length": "n_positions",
            "attention.head_count": "n_head",
            "attention.layer_norm_epsilon": "layer_norm_epsilon",
        },
        top={
            "token_embd": "transformer.wte",
            "position_embd": "transformer.wpe",
            "output_norm": "transformer.ln_f",
            "output": "lm_head",
        },
        block_prefix="transformer.h.",
        block={
            "attn_norm": "ln_1",
            "attn_qkv": "attn.c_attn",
            "attn_output": "attn.c_proj",
            "ffn_norm": "ln_2",
            "ffn_up": "mlp.c_fc",
            "ffn_down": "mlp.c_proj",
        },
        transposed=frozenset({"attn_qkv", "attn_output", "ffn_up", "ffn_down"}),
    ),
}
_TENSOR_NAME = re.compile(r"(?:blk\.(\d{1,5})\.)?(\w+)\.(weight|bias)")


def find_gguf_architecture(metadata: Mapping[str, Any]) -> tuple[str, GgufArchitecture]:
    """The architecture of a file, and its name."""
    name = metadata.get("general.architecture")
    if not isinstance(name, str) or name not in GGUF_ARCHITECTURES:
        hint = suggest_name(str(name), GGUF_ARCHITECTURES)
        raise QkvError(f"general.architecture = {name!r} is not supported; {hint}")
    if metadata.get(f"{name}.expert_count"):
        raise QkvError(f"{name}.expert_count: a mixture of experts is not supported; use a dense model")
    return name, GGUF_ARCHITECTURES[name]


def hf_tensor_name(architecture: GgufArchitecture, name: str) -> str:
    """The Hugging Face name of a tensor. An unknown name is returned unchanged.

    >>> hf_tensor_name(GGUF_ARCHITECTURES["llama"], "blk.3.attn_q.weight")
    'model.layers.3.self_attn.q_proj.weight'
    """
    if match := _TENSOR_NAME.fullmatch(name):
        layer, module, suffix = match.groups()
        names = architecture.top if layer is None else architecture.block
        if module in names:
            prefix = "" if layer is None else f"{architecture.block_prefix}{layer}."
            return f"{prefix}{names[module]}.{suffix}"
    return name


def hf_tensor(name: str, tensor: Tensor, architecture: GgufArchitecture, hf_config: Json) -> Tensor:
    """A tensor of the file as Hugging Face stores it: the same values in another order."""
    match = _TENSOR_NAME.fullmatch(name)
    module = match[2] if match else ""
    if module in architecture.transposed and tensor.dim() == 2:
        return tensor.t().contiguous()
    if architecture.interleaved and module in ("attn_q", "attn_k"):
        heads = hf_config["num_attention_heads"]
        if module == "attn_k":
            heads = hf_config.get("num_key_value_heads") or heads
        if len(tensor) % (2 * heads):
            raise QkvError(f"{name}: {len(tensor)} rows cannot be divided among {heads} heads of even width")
        # Llama's rotary pairs are (i, i + D/2); llama.cpp moves them to (2i, 2i + 1).
        return tensor.view(heads, -1, 2, *tensor.shape[1:]).transpose(1, 2).reshape(tensor.shape)
    return tensor


def hf_config_values(metadata: Mapping[str, Any], shapes: Mapping[str, tuple[int, ...]]) -> Json:
    """The values of config.json. `shapes` are the shapes of the file's tensors, by their names in the file."""
    name, architecture = find_gguf_architecture(metadata)
    values: Json = {"model_type": name, "architectures": [architecture.class_name]}
    for theirs, ours in architecture.keys.items():
        value = metadata.get(f"{name}.{theirs}")
        if value is None:
            continue
        if isinstance(value, list):
            if len(set(value)) != 1:
                raise QkvError(f"{name}.{theirs}: layers of different sizes are not supported")
            value = value[0]
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise QkvError(f"{name}.{theirs} = {value!r}: expected a number")
        values[ours] = value
    required = ("embedding_length", "block_count", "attention.head_count")
    if missing := [f"{name}.{key}" for key in required if architecture.keys[key] not in values]:
        raise QkvError(f"no {', '.join(missing)}")
    if min(values[architecture.keys[key]] for key in required) < 1:
        raise QkvError(f"{', '.join(f'{name}.{key}' for key in required)}: all of these must be at least 1")
    if "rope.freq_base" in architecture.keys:
        head_dim = values.get("head_dim") or values["hidden_size"] // values["num_attention_heads"]
        if (rotated := metadata.get(f"{name}.rope.dimension_count", head_dim)) != head_dim:
            raise QkvError(
                f"{name}.rope.dimension_count = {shorten(repr(rotated))}, but a head has {head_dim} dimensions: "
                f"partial rotary embeddings are not supported for {name}; use another model"
            )
    if "token_embd.weight" not in shapes:
        raise QkvError("no tensor token_embd.weight")
    values["vocab_size"] = shapes["token_embd.weight"][0]
    values["tie_word_embeddings"] = "output.weight" not in shapes
    values["attention_bias"] = "blk.0.attn_q.bias" in shapes
    values["mlp_bias"] = "blk.0.ffn_up.bias" in shapes
    if (kind := metadata.get(f"{name}.rope.scaling.type", "none")) != "none":
        values["rope_scaling"] = {
            "rope_type": kind,
            "factor": metadata.get(f"{name}.rope.scaling.factor", 1.0),
            "original_max_position_embeddings": metadata.get(f"{name}.rope.scaling.original_context_length"),
        }
    return values | _special_ids(metadata)


def _special_ids(metadata: Mapping[str, Any]) -> Json:
    ids = {role: metadata.get(f"tokenizer.ggml.{role}_token_id") for role in ("bos", "eos", "eot", "padding")}
    ids = {role: value if isinstance(value, int) else None for role, value in ids.items()}
    ends = list(dict.fromkeys(value for value in (ids["eos"], ids["eot"]) if value is not None))
    return {"bos_token_id": ids["bos"], "eos_token_id": ends, "pad_token_id": ids["padding"]}


def llama3_scaling(factors: Tensor, base: float) -> Json:
    """The settings of Llama 3's rotary scaling, of which the file has only the resulting divisors, as `factors`.

    The divisor of a frequency is 1 for short wavelengths, `factor` for long ones, and in between an interpolation
    (`qkv.blocks.position` has the equation). All published models have the same three other settings.
    """
    settings = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}
    low, high, length = settings.values()
    factor = float(factors.max())
    half = len(factors)
    wavelengths = 2 * math.pi * base ** (torch.arange(half, dtype=torch.float64) / half)
    smooth = ((length / wavelengths - low) / (high - low)).clamp(0, 1)
    if not torch.allclose(1 / ((1 - smooth) / factor + smooth), factors.double(), rtol=1e-3):
        raise QkvError(f"{ROPE_FACTORS}: only the rotary frequencies of Llama 3 are supported; use another model")
    return {"rope_type": "llama3", "factor": factor, **settings}
