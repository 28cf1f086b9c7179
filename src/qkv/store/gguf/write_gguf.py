"""Write a decoder as a GGUF file, which llama.cpp reads: the tables of `architectures`, from right to left."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from qkv.errors import QkvError, UsageError, suggest_name
from qkv.files import partial_path, publish_file, report_write_errors
from qkv.models import Config, Network
from qkv.models.tables import ARCHITECTURES, UnsupportedConfigError, write_config, write_weights
from qkv.models.tables.architecture import Json
from qkv.store.gguf.architectures import GGUF_ARCHITECTURES, ROPE_FACTORS, GgufArchitecture
from qkv.store.gguf.gguf_weights import require_gguf
from qkv.store.huggingface import HfExport
from qkv.text import Tokenizer
from qkv.text.formats.gguf_metadata import gguf_tokenizer_metadata

GGUF_DTYPES = {
    "f32": "ALL_F32",
    "f16": "MOSTLY_F16",
    "bf16": "MOSTLY_BF16",
    "q8_0": "MOSTLY_Q8_0",
    "q4_0": "MOSTLY_Q4_0",
}
"""How matrices can be stored → the type of the file. Vectors are always stored in float32."""
FLOAT32_MATRICES = ("position_embd",)  # llama.cpp adds these to float32 activations
VOCABULARY_MATRICES = ("token_embd", "output")  # q4_0 stores them in q8_0, because errors in them cost the most


def write_gguf(path: Path, config: Config, network: Network, tokenizer: Tokenizer | None, dtype: str = "f16") -> str:
    """Write a GGUF file, and return the name of its architecture.

    The file is complete before it replaces an old one.
    """
    if dtype not in GGUF_DTYPES:
        raise UsageError(f"unknown dtype {dtype!r}; {suggest_name(dtype, GGUF_DTYPES)}")
    gguf = require_gguf()
    target = find_gguf_export(config)
    name = target.architecture.name
    if tokenizer is None:
        raise QkvError("this model has no tokenizer, and a GGUF file needs one; export it with --format hf")
    metadata = {
        "general.name": path.stem,
        "general.file_type": int(gguf.LlamaFileType[GGUF_DTYPES[dtype]]),
        "general.quantization_version": gguf.GGML_QUANT_VERSION,
        **architecture_metadata(config, target.hf_config, GGUF_ARCHITECTURES[name]),
        **gguf_tokenizer_metadata(tokenizer, config.stack.vocab_size),
        **end_tokens(config),
    }
    parameters = {key: parameter.detach() for key, parameter in network.named_parameters()}
    tensors = write_weights(target.architecture, target.head_table, config, parameters)
    with report_write_errors(path, "choose another file"):
        writer = gguf.GGUFWriter(partial_path(path), name)
        for key, value in metadata.items():
            add_value(writer, key, value)
        for stored_name, values in gguf_tensors(tensors, GGUF_ARCHITECTURES[name], target.hf_config):
            kind = find_dtype(stored_name, values, dtype)
            quantized = gguf.quantize(values, gguf.GGMLQuantizationType[kind])
            writer.add_tensor(stored_name, quantized, raw_dtype=gguf.GGMLQuantizationType[kind])
        if (scaling := config.stack.rotary_scaling) and scaling.kind == "llama3":
            writer.add_tensor(ROPE_FACTORS, llama3_factors(config))
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        publish_file(partial_path(path), path)
    return name


def find_gguf_export(config: Config) -> HfExport:
    """The architecture of GGUF files that a model has, with its values in Hugging Face's names."""
    problems = []
    for name in sorted(GGUF_ARCHITECTURES, key=lambda name: name != config.architecture):
        try:
            hf_config, head_table = write_config(ARCHITECTURES[name], config)
        except UnsupportedConfigError as error:
            problems.append(error)
            continue
        if head_table.class_name == GGUF_ARCHITECTURES[name].class_name:
            return HfExport(ARCHITECTURES[name], head_table, hf_config)
    closest = min(problems, key=lambda error: (not error.fields, len(error.fields)), default=None)
    detail = f" The closest one is {closest.name}, which {closest.reason}." if closest else ""
    raise QkvError(
        f"GGUF files hold language models with the architecture of {', '.join(GGUF_ARCHITECTURES)}, and this model has "
        f"another one.{detail} Train one that fits: qkv init language FILE --shape exportable"
    )


def architecture_metadata(config: Config, hf_config: Json, architecture: GgufArchitecture) -> Json:
    """The sizes of the model."""
    stack, name = config.stack, hf_config["model_type"]
    values = {f"{name}.{theirs}": hf_config.get(ours) for theirs, ours in architecture.keys.items()}
    values[f"{name}.feed_forward_length"] = stack.ffn_width
    values[f"{name}.vocab_size"] = stack.vocab_size
    if "rope.freq_base" in architecture.keys:
        values |= {f"{name}.rope.freq_base": stack.rotary_base, f"{name}.rope.dimension_count": stack.head_dim}
        values |= {f"{name}.attention.{key}_length": stack.head_dim for key in ("key", "value")}
        values[f"{name}.attention.head_count_kv"] = stack.kv_heads
    if (scaling := stack.rotary_scaling) and scaling.kind != "llama3":
        values |= {f"{name}.rope.scaling.type": scaling.kind, f"{name}.rope.scaling.factor": scaling.factor}
        if scaling.kind == "yarn":
            values[f"{name}.rope.scaling.original_context_length"] = scaling.original_max_positions
    return {key: value for key, value in values.items() if value is not None}


def end_tokens(config: Config) -> dict[str, int]:
    """The tokens that end a text. Without them, llama.cpp would stop at a token of its own choice."""
    if not config.eos_token_ids:
        raise QkvError(
            "this model has no end token (eos_token_ids), which a GGUF file needs; export it with --format hf"
        )
    names = ("eos", "eot")
    if len(config.eos_token_ids) > len(names):
        raise QkvError(f"this model has {len(config.eos_token_ids)} end tokens, and a GGUF file has at most two")
    return {f"tokenizer.ggml.{name}_token_id": token for name, token in zip(names, config.eos_token_ids, strict=False)}


def gguf_tensors(
    tensors: Mapping[str, Tensor], architecture: GgufArchitecture, hf_config: Json
) -> Iterator[tuple[str, np.ndarray]]:
    """The tensors of a Hugging Face folder, by their names and in their order in a GGUF file, in float32."""
    ours = {theirs: module for module, theirs in architecture.top.items()}
    blocks = {theirs: module for module, theirs in architecture.block.items()}
    for name, tensor in tensors.items():
        stem, _, suffix = name.rpartition(".")
        layer = ""
        if stem.startswith(architecture.block_prefix):
            number, _, stem = stem.removeprefix(architecture.block_prefix).partition(".")
            layer = f"blk.{number}."
        module = (blocks if layer else ours)[stem]
        values = tensor.to("cpu", torch.float32)
        if module in architecture.transposed and values.dim() == 2:
            values = values.t()
        if architecture.interleaved and module in ("attn_q", "attn_k"):
            heads = hf_config["num_attention_heads" if module == "attn_q" else "num_key_value_heads"]
            values = values.reshape(heads, 2, -1, *values.shape[1:]).transpose(1, 2).reshape(values.shape)
        yield f"{layer}{module}.{suffix}", values.contiguous().numpy()


def find_dtype(name: str, values: np.ndarray, dtype: str) -> str:
    """The type in which a tensor is stored."""
    module = name.split(".")[-2]
    if values.ndim == 1 or module in FLOAT32_MATRICES:
        return "F32"
    if dtype.startswith("q") and values.shape[-1] % 32:
        raise QkvError(f"{name}: rows of {values.shape[-1]} numbers are not whole blocks of 32; choose --dtype f16")
    return "Q8_0" if dtype == "q4_0" and module in VOCABULARY_MATRICES else dtype.upper()


def llama3_factors(config: Config) -> np.ndarray:
    """The divisors of the rotary frequencies of Llama 3: the inverse of `architectures.llama3_scaling`."""
    stack = config.stack
    scaling = stack.rotary_scaling
    assert scaling is not None
    half = stack.head_dim // 2
    wavelengths = 2 * np.pi * stack.rotary_base ** (np.arange(half) / half)
    low, high = scaling.low_freq_factor, scaling.high_freq_factor
    smooth = ((scaling.original_max_positions / wavelengths - low) / (high - low)).clip(0, 1)
    factors: np.ndarray = 1 / ((1 - smooth) / scaling.factor + smooth)
    return np.asarray(factors, np.float32)


def add_value(writer: Any, key: str, value: Any) -> None:
    """Write an entry of the metadata in the type that llama.cpp expects."""
    if isinstance(value, bool):
        writer.add_bool(key, value)
    elif isinstance(value, int):
        writer.add_uint32(key, value)
    elif isinstance(value, float):
        writer.add_float32(key, value)
    elif isinstance(value, str):
        writer.add_string(key, value)
    else:
        writer.add_array(key, value)
