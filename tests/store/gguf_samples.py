"""Tiny GGUF files, written with the package `gguf` in the way in which llama.cpp's converter writes them."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file

import qkv
from qkv.blocks import HeadConfig, StackConfig
from qkv.text import Tokenizer

CHAT_TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
LLAMA_TENSORS = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
}
GPT2_TENSORS = {
    "ln_1": "attn_norm",
    "attn.c_attn": "attn_qkv",
    "attn.c_proj": "attn_output",
    "ln_2": "ffn_norm",
    "mlp.c_fc": "ffn_up",
    "mlp.c_proj": "ffn_down",
    "transformer.wte": "token_embd",
    "transformer.wpe": "position_embd",
    "transformer.ln_f": "output_norm",
    "lm_head": "output",
}


def chat_tokenizer() -> Tokenizer:
    """A byte-level tokenizer with the tokens of a chat."""
    names = {"unk": "<|endoftext|>", "bos": "<|im_start|>", "eos": "<|im_end|>"}
    texts = ["what is the capital of france? it's paris, 1234 and don't "] * 4
    tokenizer = Tokenizer.train("byte-bpe", iter(texts), 300, special_tokens=names)
    tokenizer.config["chat_template"] = CHAT_TEMPLATE
    return tokenizer


def tiny_model(architecture: str, tied: bool = True) -> qkv.Model:
    """A tiny model with random weights of one of the architectures that GGUF files have."""
    sizes = {"vocab_size": 300, "width": 32, "layers": 2, "heads": 4, "ffn_width": 64, "max_positions": 64}
    if architecture == "gpt2":
        stack = StackConfig(**sizes, position="learned", norm_placement="pre", feedforward="gelu_tanh", init="scaled")
    else:
        bias = {"llama": "none", "qwen2": "qkv", "qwen3": "none"}[architecture]
        stack = StackConfig(
            **sizes,
            kv_heads=2,
            head_dim=8,
            position="rotary",
            rotary_base=50_000.0,
            norm="rmsnorm",
            norm_placement="pre",
            norm_affine="gain",
            norm_eps=1e-5,
            feedforward="swiglu",
            bias=bias,
            qk_norm="head" if architecture == "qwen3" else "none",
        )
    head = HeadConfig(kind="lm", outputs=300, tied=tied)
    config = qkv.Config(
        decoder=stack, head=head, architecture=architecture, decoder_start_token_id=1, eos_token_ids=(2,)
    )
    model = qkv.new(config, tokenizer=chat_tokenizer(), seed=3)
    with torch.no_grad():  # biases and norms that are not all 0 and 1
        for parameter in model.network.parameters():
            parameter += 0.05 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1))
    return model


def tokenizer_metadata(tokenizer: Tokenizer, pre: str = "gpt-2") -> dict[str, Any]:
    """The metadata of a byte-level BPE tokenizer."""
    model = json.loads(tokenizer.backend.to_str())["model"]
    tokens = sorted(model["vocab"], key=model["vocab"].get)
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": pre,
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [3 if i in tokenizer.special_ids else 1 for i in range(len(tokens))],
        "tokenizer.ggml.merges": [" ".join(pair) for pair in model["merges"]],
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.unknown_token_id": 0,
        "tokenizer.ggml.add_bos_token": False,
        "tokenizer.chat_template": tokenizer.config["chat_template"],
    }


def write_gguf(
    path: Path, model: qkv.Model, architecture: str, quantization: str = "F32", changes: Mapping[str, Any] | None = None
) -> Path:
    """Write a model as a GGUF file; `changes` are changes of its metadata, where None removes a key."""
    import gguf

    kind = gguf.GGMLQuantizationType[quantization]
    model.export(path.with_suffix(".hf"))
    stack = model.config.stack
    values: dict[str, Any] = {
        "block_count": stack.layers,
        "embedding_length": stack.width,
        "context_length": stack.max_positions,
        "feed_forward_length": stack.ffn_width,
        "attention.head_count": stack.heads,
    }
    if architecture == "gpt2":
        values["attention.layer_norm_epsilon"] = stack.norm_eps
    else:
        values |= {"attention.head_count_kv": stack.kv_heads, "attention.key_length": stack.head_dim}
        values |= {"attention.layer_norm_rms_epsilon": stack.norm_eps, "rope.freq_base": stack.rotary_base}
        values |= {"rope.dimension_count": stack.head_dim}
    metadata = {f"{architecture}.{key}": value for key, value in values.items()}
    metadata |= tokenizer_metadata(model.tokenizer) | dict(changes or {})
    writer = gguf.GGUFWriter(path, architecture)
    for key, value in metadata.items():
        add_value(writer, key, value)
    for name, tensor in load_file(path.with_suffix(".hf") / "model.safetensors").items():
        stored, values_2d = gguf_tensor(name, tensor, architecture, stack)
        if values_2d.ndim == 1 or kind == gguf.GGMLQuantizationType.F32:
            writer.add_tensor(stored, values_2d)
        else:
            writer.add_tensor(stored, gguf.quantize(values_2d, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def add_value(writer: Any, key: str, value: Any) -> None:
    if isinstance(value, bool):
        writer.add_bool(key, value)
    elif isinstance(value, int):
        writer.add_uint32(key, value)
    elif isinstance(value, float):
        writer.add_float32(key, value)
    elif isinstance(value, str):
        writer.add_string(key, value)
    elif value is not None:
        writer.add_array(key, value)


def gguf_tensor(name: str, tensor: torch.Tensor, architecture: str, stack: StackConfig) -> tuple[str, np.ndarray]:
    """A tensor of a Hugging Face folder under llama.cpp's name and in its order."""
    stem, _, suffix = name.rpartition(".")
    is_gpt2 = architecture == "gpt2"
    prefix = ("transformer.h." if is_gpt2 else "model.layers.") if "." in stem else ""
    table, layer = GPT2_TENSORS if is_gpt2 else LLAMA_TENSORS, ""
    if prefix and stem.startswith(prefix):
        number, _, stem = stem.removeprefix(prefix).partition(".")
        layer = f"blk.{number}."
    if is_gpt2 and stem in ("attn.c_attn", "attn.c_proj", "mlp.c_fc", "mlp.c_proj") and tensor.dim() == 2:
        tensor = tensor.t()
    if architecture == "llama" and table[stem] in ("attn_q", "attn_k"):
        heads = stack.heads if table[stem] == "attn_q" else stack.kv_heads
        tensor = tensor.reshape(heads, 2, -1, tensor.shape[-1]).swapaxes(1, 2).reshape(tensor.shape)
    return f"{layer}{table[stem]}.{suffix}", tensor.contiguous().numpy()
