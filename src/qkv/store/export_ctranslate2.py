"""Export to CTranslate2, a C++ inference engine.

CTranslate2 describes a model as a tree of layer specs with arrays in its leaves. This file fills that tree with the
weights of our network. If CTranslate2 does not support a config, one error lists all unsupported settings, and nothing
is written. CTranslate2's position tables end at `max_positions`, even for a model whose positions have no limit.

C model width
"""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from qkv.blocks import Embedding, Stack, StackConfig
from qkv.blocks.feedforward import FeedForward
from qkv.blocks.parts import find_part
from qkv.errors import QkvError
from qkv.models import Config, Network
from qkv.store.staged_folder import staged_folder
from qkv.text import Tokenizer

FEEDFORWARDS = {"relu", "gelu", "gelu_tanh", "silu", "reglu", "geglu", "geglu_tanh", "swiglu"}
POSITIONS = ("sinusoidal", "sinusoidal_split", "learned", "rotary", "alibi", "t5", "none")
ACTIVATIONS = {"relu": "RELU", "gelu": "GELU", "gelu_tanh": "GELUTanh", "silu": "SWISH"}


def write_ctranslate2(folder: str | Path, config: Config, network: Network, tokenizer: Tokenizer | None) -> str:
    """Write a folder that CTranslate2 loads, and return the name of the class that loads it.

    CTranslate2's config has room for one end token: it gets the first of `eos_token_ids`. If there are more, pass them
    to CTranslate2 as `end_token=` when you generate.
    """
    problems = unsupported_settings(config)
    if problems:
        raise QkvError(
            f"CTranslate2 does not support this model: {'; '.join(problems)}. Change these settings, or try another "
            "format (hf, onnx)"
        )
    try:
        from ctranslate2 import specs
    except ImportError as error:
        raise QkvError('the CTranslate2 format needs an optional package: pip install "qkv[ctranslate2]"') from error
    with torch.no_grad():
        stack, embedding = network.output_stack, network.output_embedding
        shape = _spec_arguments(stack.config, specs)
        if network.has_source:
            source, source_embedding = network.stacks["encoder"], network.embeddings["encoder"]
            encoder = specs.TransformerEncoderSpec(**_spec_arguments(source.config, specs))
            decoder = specs.TransformerDecoderSpec(**shape)
            model = specs.TransformerSpec(encoder, decoder)
            _fill_stack(encoder, encoder.embeddings[0], source_embedding, source)
            model.register_source_vocabulary(_vocabulary(source.config.vocab_size, tokenizer))
            target_tokenizer = tokenizer.target if tokenizer else None
            model.register_target_vocabulary(_vocabulary(stack.config.vocab_size, target_tokenizer))
        else:
            decoder = specs.TransformerDecoderSpec(**shape, with_encoder_attention=False)
            model = specs.TransformerDecoderModelSpec(decoder)
            model.register_vocabulary(_vocabulary(stack.config.vocab_size, tokenizer))
        _fill_stack(decoder, decoder.embeddings, embedding, stack)
        assert network.head.out is not None
        _fill_linear(decoder.projection, network.head.out)
    if network.head.scale != 1.0:
        decoder.scale_outputs = network.head.scale
    _fill_config(model.config, config, tokenizer)
    weight = network.head.out.weight
    half = {torch.float16: "float16", torch.bfloat16: "bfloat16"}.get(weight.dtype)
    model.validate()
    model.optimize(quantization=half)
    with staged_folder(folder, "model.bin", ("*vocabulary.json",)) as staging:
        if tokenizer is not None:
            tokenizer.save(staging)
        model.save(str(staging))
    return "Translator" if network.has_source else "Generator"


def unsupported_settings(config: Config) -> list[str]:
    """List the settings of a config that CTranslate2 does not support, each as `field = value: supported values`."""
    if config.decoder is None or config.head.kind != "lm":
        return [f"a {config.head.kind} head on {config.family}-only: only decoders with an lm head can be exported"]
    is_seq2seq = config.encoder is not None
    rules = {
        f"head.dense = {config.head.dense!r}: there must be no dense layer before the output projection": (
            config.head.dense != "none"
        ),
        f"head.logit_cap = {config.head.logit_cap}: only logits without softcapping are supported": (
            bool(config.head.logit_cap)
        ),
        "eos_token_ids = (): at least one end token is needed": not config.eos_token_ids,
        "decoder_start_token_id = None: the token that every target starts with is needed": (
            is_seq2seq and config.decoder_start_token_id is None
        ),
        "norm_eps: encoder and decoder need the same value": (
            config.encoder is not None and config.encoder.norm_eps != config.decoder.norm_eps
        ),
    }
    for side, stack in config.stacks.items():
        rules |= {f"{side}.{problem}": found for problem, found in _stack_rules(stack, cross=is_seq2seq).items()}
    return [problem for problem, found in rules.items() if found]


def _stack_rules(stack: StackConfig, *, cross: bool) -> dict[str, bool]:
    """For each problem that a stack may have, whether it has it."""
    scaling = "" if stack.rotary_scaling is None else stack.rotary_scaling.kind
    return {
        f"feedforward = {stack.feedforward!r}: supported are {', '.join(ACTIVATIONS)} and their gated forms": (
            stack.feedforward not in FEEDFORWARDS
        ),
        f"score_cap = {stack.score_cap}: only scores without softcapping are supported": bool(stack.score_cap),
        'attention_sinks = "learned": only "none" is supported': stack.attention_sinks != "none",
        'value_residual = "first": only "none" is supported': stack.value_residual != "none",
        f"layer_scale = {stack.layer_scale}: updates may have no gain": bool(stack.layer_scale),
        f"norm = {stack.norm!r}: only 'layernorm' and 'rmsnorm' are supported": stack.norm
        not in ("layernorm", "rmsnorm"),
        f"position = {stack.position!r}: supported are {', '.join(POSITIONS)}": stack.position not in POSITIONS,
        f"attention = {stack.attention!r}: only 'softmax' is supported": stack.attention != "softmax",
        f"block = {stack.block!r}: only 'transformer' is supported": stack.block != "transformer",
        'residual = "none": only "serial" and "parallel" are supported': stack.residual == "none",
        'norm_placement = "sandwich": only "pre" and "post" are supported': stack.norm_placement == "sandwich",
        'embedding_norm = "replaces_first": there must be no norm between the embedding and block 0': (
            stack.embedding_norm == "replaces_first"
        ),
        f"embedding_width = {stack.embedding_width}: the embedding must have the width of the model": (
            bool(stack.embedding_width)
        ),
        f"token_types = {stack.token_types}: token types are not supported": bool(stack.token_types),
        f"sliding_window = {stack.sliding_window}: only full attention is supported": bool(stack.sliding_window),
        'residual = "parallel" with norm = "rmsnorm": only LayerNorm is supported here': (
            stack.residual == "parallel" and stack.norm == "rmsnorm"
        ),
        'qk_norm = "head" with norm = "layernorm": only RMSNorm is supported here': (
            stack.qk_norm == "head" and stack.norm != "rmsnorm"
        ),
        'position = "alibi" in an encoder-decoder: choose another position encoding': (
            cross and stack.position == "alibi"
        ),
        'qk_norm = "head" in an encoder-decoder: only "none" is supported': cross and stack.qk_norm == "head",
        f"rotary_scaling.kind = {scaling!r}: only 'linear' is supported": scaling not in ("", "linear"),
    }


def _spec_arguments(stack: StackConfig, specs: Any) -> dict[str, Any]:
    """The arguments with which CTranslate2 makes the encoder or decoder spec of a stack."""
    feedforward = find_part("feedforward", stack).options
    shape: dict[str, Any] = {
        "num_layers": stack.layers,
        "num_heads": stack.heads,
        "num_heads_kv": stack.kv_heads if stack.kv_heads != stack.heads else None,
        "head_dim": stack.head_dim,
        "pre_norm": stack.norm_placement == "pre",
        "rms_norm": stack.norm == "rmsnorm",
        "activation": getattr(specs.Activation, ACTIVATIONS[feedforward["activation"]]),
        "ffn_glu": feedforward.get("gated", False),
        "layernorm_embedding": stack.embedding_norm == "extra",
        "relative_attention_bias": stack.position == "t5",
        "qk_norm": stack.qk_norm == "head",
    }
    if stack.position == "rotary":
        shape |= {"rotary_dim": stack.rotary_dim, "rotary_interleave": False, "rotary_base": stack.rotary_base}
        if stack.rotary_scaling is not None:
            shape["rotary_scaling_type"] = specs.RotaryScalingType.Linear
            shape["rotary_scaling_factor"] = stack.rotary_scaling.factor
    if stack.position == "alibi":
        shape["alibi"] = True
    if stack.residual == "parallel":
        shape["parallel_residual"] = True
    return shape


def _fill_stack(spec: Any, embeddings: Any, embedding: Embedding, stack: Stack) -> None:
    config = stack.config
    embeddings.weight = _array(embedding.token.weight)
    spec.scale_embeddings = embedding.scale if embedding.scale != 1.0 else False
    if hasattr(spec, "position_encodings"):
        spec.position_encodings.encodings = _array(_position_table(config, embedding))
    if embedding.norm is not None:
        _fill_norm(spec.layernorm_embedding, embedding.norm, config.width)
    if stack.norm is not None:
        _fill_norm(spec.layer_norm, stack.norm, config.width)
    for layer, block_spec in enumerate(spec.layer):
        _fill_block(block_spec, stack.block_of(layer), stack)


def _position_table(config: StackConfig, embedding: Embedding) -> Tensor:
    """The vector added to the embedding at each position, (max_positions, C)."""
    vectors = embedding.position_vectors(torch.arange(config.max_positions, device=embedding.token.weight.device)[None])
    return torch.zeros(config.max_positions, config.width) if vectors is None else vectors[0]


def _fill_block(spec: Any, block: Any, stack: Stack) -> None:
    config = stack.config
    _fill_attention(spec.self_attention, block.attention, [block.attention.qkv], config)
    if stack.bias is not None and stack.bias.table is not None:
        spec.self_attention.relative_attention_bias = _array(stack.bias.table.weight)
        spec.self_attention.relative_attention_max_distance = np.int32(config.relative_max_distance)
    _fill_feedforward(spec.ffn, block.ffn)
    if block.parallel:
        _fill_norm(spec.input_layer_norm, block.attention_sub.norm, config.width)
        _fill_norm(spec.post_attention_layer_norm, block.ffn_sub.norm, config.width)
        return
    _fill_norm(spec.self_attention.layer_norm, block.attention_sub.norm, config.width)
    _fill_norm(spec.ffn.layer_norm, block.ffn_sub.norm, config.width)
    if block.cross is not None:
        _fill_attention(spec.attention, block.cross, [block.cross.q, block.cross.kv], config)
        _fill_norm(spec.attention.layer_norm, block.cross_sub.norm, config.width)


def _fill_attention(spec: Any, attention: Any, projections: list[nn.Linear], config: StackConfig) -> None:
    for linear_spec, linear in zip(spec.linear, [*projections, attention.out], strict=True):
        _fill_linear(linear_spec, linear)
    if attention.q_norm is not None:
        _fill_norm(spec.q_norm, attention.q_norm, config.head_dim)
        _fill_norm(spec.k_norm, attention.k_norm, config.head_dim)
    if config.score_scale == "none":
        spec.queries_scale = 1.0


def _fill_feedforward(spec: Any, ffn: FeedForward) -> None:
    if ffn.gated:
        half = ffn.up.out_features // 2
        _fill_linear(spec.linear_0, ffn.up, slice(0, half))
        _fill_linear(spec.linear_0_noact, ffn.up, slice(half, None))
    else:
        _fill_linear(spec.linear_0, ffn.up)
    _fill_linear(spec.linear_1, ffn.down)


def _fill_linear(spec: Any, linear: nn.Linear, rows: slice = slice(None)) -> None:
    spec.weight = _array(linear.weight[rows])
    if linear.bias is not None:
        spec.bias = _array(linear.bias[rows])


def _fill_norm(spec: Any, norm: nn.Module, width: int) -> None:
    """Copy a norm. If our norm has no gain, the gain of CTranslate2's norm is 1; if ours has no bias, its bias is 0."""
    gain, bias = getattr(norm, "weight", None), getattr(norm, "bias", None)
    spec.gamma = _array(torch.ones(width) if gain is None else gain)
    if hasattr(spec, "beta"):
        spec.beta = _array(torch.zeros(width) if bias is None else bias)


def _array(tensor: Tensor) -> Any:
    return np.ascontiguousarray(tensor.detach().float().cpu().numpy())


def _vocabulary(size: int, tokenizer: Tokenizer | None) -> list[str]:
    """List the tokens in the order of their ids. An id that the tokenizer does not have becomes `<id_N>`."""
    tokens = {} if tokenizer is None else {i: token for token, i in tokenizer.backend.get_vocab().items()}
    return [tokens.get(i, f"<id_{i}>") for i in range(size)]


def _fill_config(spec_config: Any, config: Config, tokenizer: Tokenizer | None) -> None:
    stack = config.stack
    tokens = _vocabulary(stack.vocab_size, tokenizer.target if tokenizer else None)
    spec_config.layer_norm_epsilon = stack.norm_eps
    spec_config.eos_token = tokens[config.eos_token_ids[0]]
    spec_config.bos_token = tokens[
        config.decoder_start_token_id if config.decoder_start_token_id is not None else config.eos_token_ids[0]
    ]
    unk = tokenizer.special_tokens.unk if tokenizer else None
    spec_config.unk_token = tokens[unk] if unk is not None else spec_config.eos_token
    if config.encoder is not None:
        spec_config.decoder_start_token = spec_config.bos_token
