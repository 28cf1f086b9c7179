"""The parameters, FLOPs and memory of a model, computed from its config: no network is built.

A multiply-add counts as two FLOPs. FLOPs of the forward pass, per token: 2 per matrix weight, and 4·H·D per attended
key (scores and weighted values). Without a window every token counts as attending to all `context_length` keys, also
in a causal layer. The backward pass costs twice as much, so training costs three times the forward pass.
Embedding look-ups count as 0 FLOPs; a tied output matrix counts like any matrix. A recurrent layer costs 2 FLOPs per
matrix weight and token, whatever the length; its element-wise functions count as 0, as those of a Transformer.
"""

from dataclasses import asdict, dataclass
from typing import Any

from qkv.blocks import HeadConfig, StackConfig
from qkv.blocks.config import GATED_ACTIVATIONS
from qkv.models.config import Config

COMPONENTS = ("embedding", "attention", "mlp", "norms", "head")
RECURRENT_COMPONENTS = ("embedding", "recurrent", "attention", "norms", "head")
GATES = {"rnn": 1, "gru": 3, "lstm": 4}  # matrices of a recurrent layer, for its input and for its state
BYTES_PER_NUMBER = {"float32": 4, "bfloat16": 2, "int8": 1}


@dataclass(frozen=True)
class ModelSummary:
    """Parameters, FLOPs and memory of a model."""

    family: str
    layers: dict[str, int]  # per stack
    heads: dict[str, int]
    width: int
    vocab_size: int
    context_length: int  # the length for which FLOPs are computed
    parameters: dict[str, int]  # per component; shared parameters count once; a recurrent model has other components
    total: int
    tied: bool  # whether the output matrix is the embedding
    flops_forward: int  # per token
    flops_training: int  # per token, forward and backward
    weight_bytes: dict[str, int]  # per dtype
    cache_bytes_per_token: dict[str, int]  # per dtype: the keys and values of self-attention
    cross_bytes_per_source_token: dict[str, int]  # per dtype: the keys and values of cross-attention
    state_bytes: dict[str, int]  # per dtype: the state of a recurrent decoder, for each sequence; 0 in a Transformer

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, for JSON."""
        return asdict(self)


def summarise_model(config: Config, context_length: int | None = None) -> ModelSummary:
    """Summarise a config at a context length (by default its number of positions, at most 2,048)."""
    parameters = count_parameters(config)
    total = sum(parameters.values())
    stacks = config.stacks
    context_length = context_length or min(config.stack.max_positions, 2048)
    forward = 2 * _head_weights(config)
    for name, stack in stacks.items():
        causal = name == "decoder"
        forward += _stack_flops(stack, context_length, causal=causal, cross=causal and config.encoder is not None)
    decoder = config.decoder
    cached = 2 * decoder.layers * decoder.kv_heads * decoder.head_dim if decoder else 0
    cross = cached if config.family == "seq2seq" else 0
    state = 0
    if decoder is not None and decoder.is_recurrent:
        cached, state = 0, decoder.layers * decoder.width * _num_states(decoder)
        cross = 2 * decoder.width if config.family == "seq2seq" else 0
    return ModelSummary(
        family=config.family,
        layers={name: stack.layers for name, stack in stacks.items()},
        heads={name: stack.heads for name, stack in stacks.items()},
        width=config.stack.width,
        vocab_size=config.stack.vocab_size,
        context_length=context_length,
        parameters=parameters,
        total=total,
        tied=config.head.tied,
        flops_forward=forward,
        flops_training=3 * forward,
        weight_bytes={dtype: total * size for dtype, size in BYTES_PER_NUMBER.items()},
        cache_bytes_per_token={dtype: cached * size for dtype, size in BYTES_PER_NUMBER.items()},
        cross_bytes_per_source_token={dtype: cross * size for dtype, size in BYTES_PER_NUMBER.items()},
        state_bytes={dtype: state * size for dtype, size in BYTES_PER_NUMBER.items()},
    )


def count_parameters(config: Config) -> dict[str, int]:
    """Return the number of parameters of each component. A shared matrix counts once, where it is first used."""
    counts = dict.fromkeys(RECURRENT_COMPONENTS if config.is_recurrent else COMPONENTS, 0)
    for stack, causal, cross in ((config.encoder, False, False), (config.decoder, True, config.family == "seq2seq")):
        if stack is None:
            continue
        _add_embedding(counts, stack)
        if stack.is_recurrent:
            _add_recurrent_layers(counts, stack, causal=causal, cross=cross)
        else:
            _add_blocks(counts, stack, cross=cross)
    if config.share_embeddings:
        counts["embedding"] -= config.stack.vocab_size * (config.stack.embedding_width or config.stack.width)
    counts["head"] = _head_parameters(config.head, config.stack)
    return counts


def _add_embedding(counts: dict[str, int], stack: StackConfig) -> None:
    width = stack.embedding_width or stack.width
    rows = stack.vocab_size + stack.token_types
    if stack.position == "learned":
        rows += stack.max_positions + stack.position_offset
    counts["embedding"] += rows * width
    if stack.embedding_width:
        counts["embedding"] += _linear(width, stack.width, bias=True)
    if stack.embedding_norm != "none":
        counts["norms"] += _norm(stack, width)


def _add_blocks(counts: dict[str, int], stack: StackConfig, *, cross: bool) -> None:
    blocks, attentions = stack.num_layer_groups, 2 if cross else 1
    inner, kv = stack.heads * stack.head_dim, stack.kv_heads * stack.head_dim
    attention = _linear(stack.width, inner + 2 * kv, bias=stack.bias != "none")
    attention += _linear(inner, stack.width, bias=stack.bias in ("all", "attention"))
    counts["attention"] += blocks * attentions * attention
    if stack.position == "t5":
        counts["attention"] += stack.relative_buckets * stack.heads
    up = stack.ffn_width * (2 if stack.feedforward in GATED_ACTIVATIONS else 1)
    bias = stack.bias == "all"
    counts["mlp"] += blocks * (_linear(stack.width, up, bias=bias) + _linear(stack.ffn_width, stack.width, bias=bias))
    norms = blocks * (attentions + 1) * (2 if stack.norm_placement == "sandwich" else 1)
    norms += stack.norm_placement != "post"  # the final norm
    norms -= stack.embedding_norm == "replaces_first"
    counts["norms"] += norms * _norm(stack, stack.width)
    if stack.qk_norm == "head":
        counts["norms"] += blocks * attentions * 2 * _norm(stack, stack.head_dim)


def _add_recurrent_layers(counts: dict[str, int], stack: StackConfig, *, causal: bool, cross: bool) -> None:
    biases = 2 * GATES[stack.recurrence] * stack.width * stack.layers  # torch has two for each gate
    counts["recurrent"] += _recurrent_matrices(stack, causal=causal, cross=cross) + biases
    if cross:  # the map from the source to the first state
        counts["recurrent"] += _linear(stack.width, stack.layers * _num_states(stack) * stack.width, bias=True)
    if cross and stack.recurrent_attention == "additive":
        counts["attention"] += 2 * stack.width**2 + 2 * stack.width  # query, key and its bias, score


def _recurrent_matrices(stack: StackConfig, *, causal: bool, cross: bool) -> int:
    """Return the weights of the matrices in all recurrent layers."""
    inputs, states = stack.layers * stack.width, stack.layers * stack.width
    if not causal:
        states //= 2  # each direction has half of the width
    if cross and stack.recurrent_attention == "additive":
        inputs += stack.width  # the first layer also reads the context
    return GATES[stack.recurrence] * stack.width * (inputs + states)


def _num_states(stack: StackConfig) -> int:
    return 2 if stack.recurrence == "lstm" else 1


def _head_parameters(head: HeadConfig, stack: StackConfig) -> int:
    inner = stack.embedding_width if head.tied and stack.embedding_width else stack.width
    total = _linear(stack.width, inner, bias=head.dense_bias) if head.dense != "none" else 0
    total += _norm(stack, inner) if head.dense_norm else 0
    if head.kind not in ("none", "embed"):
        total += (0 if head.tied else inner * head.outputs) + (head.outputs if head.bias else 0)
    if head.next_sentence_classes:
        total += _linear(stack.width, stack.width, bias=True)
        total += _linear(stack.width, head.next_sentence_classes, bias=True)
    return total


def _linear(inputs: int, outputs: int, *, bias: bool) -> int:
    return inputs * outputs + (outputs if bias else 0)


def _norm(stack: StackConfig, width: int) -> int:
    if "none" in (stack.norm, stack.norm_affine):
        return 0
    return 2 * width if stack.norm == "layernorm" and stack.norm_affine == "gain_bias" else width


def _stack_flops(stack: StackConfig, context_length: int, *, causal: bool, cross: bool) -> int:
    """Return the forward FLOPs per token of all layers. Shared weights count in each layer that uses them."""
    if stack.is_recurrent:
        weights = stack.embedding_width * stack.width + _recurrent_matrices(stack, causal=causal, cross=cross)
        if cross and stack.recurrent_attention == "additive":
            return 2 * (weights + 2 * stack.width**2) + 4 * stack.width * context_length
        return 2 * weights
    inner, kv = stack.heads * stack.head_dim, stack.kv_heads * stack.head_dim
    attention = stack.width * (2 * inner + 2 * kv)
    matrices = 3 if stack.feedforward in GATED_ACTIVATIONS else 2
    weights = attention * (2 if cross else 1) + stack.width * stack.ffn_width * matrices
    flops = 2 * stack.embedding_width * stack.width
    for layer in range(stack.layers):
        window = stack.window_of(layer)
        keys = min(context_length, window + 1 if causal else 2 * window + 1) if window else context_length
        flops += 2 * weights + 4 * inner * (keys + (context_length if cross else 0))
    return flops


def _head_weights(config: Config) -> int:
    head, width = config.head, config.stack.width
    inner = config.stack.embedding_width if head.tied and config.stack.embedding_width else width
    return (width * inner if head.dense != "none" else 0) + inner * head.outputs
