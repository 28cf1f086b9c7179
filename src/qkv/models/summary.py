"""Where a model's parameters, arithmetic and memory go, computed from shapes alone: no weight is ever allocated.

A multiply and an add count as two FLOPs. Per token, forward: 2 for every weight of a matrix that it passes through,
and in attention 2·2·H·D for every key it sees (scores, then mixing). Training costs three times that: forward, and
twice as much backward. An embedding look-up costs nothing; an output matrix that is tied to it does.
"""

from dataclasses import asdict, dataclass
from typing import Any

from qkv.blocks import StackConfig
from qkv.models.build import build
from qkv.models.config import Config

COMPONENTS = ("embedding", "attention", "mlp", "norms", "head")


@dataclass(frozen=True)
class ModelSummary:
    """The books of one model."""

    family: str
    layers: dict[str, int]  # per stack
    heads: dict[str, int]
    width: int
    vocab_size: int
    context_length: int  # the length that FLOPs are reckoned at
    parameters: dict[str, int]  # per part; shared ones once
    total: int
    tied: bool  # whether the head's matrix is the embedding's
    flops_forward: int  # per token, at `context`
    flops_training: int
    weight_bytes: dict[str, int]  # per type
    cache_bytes_per_token: dict[str, int]  # per type; a decoder's own keys and values
    cross_bytes_per_source_token: dict[str, int]

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


BYTES_PER_NUMBER = {"float32": 4, "bfloat16": 2, "int8": 1}


def summarise_model(config: Config, context_length: int | None = None) -> ModelSummary:
    """The books of a config, at a context length (by default the positions that it was made for, at most 2,048)."""
    network = build(config, device="meta")
    parameters = dict.fromkeys(COMPONENTS, 0)
    for name, parameter in network.named_parameters():
        parameters[component_of(name)] += parameter.numel()
    total = sum(parameters.values())
    stacks = {n: s for n, s in (("encoder", config.encoder), ("decoder", config.decoder)) if s is not None}
    context_length = context_length or min(config.stack.max_positions, 2048)
    forward = sum(
        _stack_flops(stack, context_length, causal=n == "decoder", cross=len(stacks) == 2 and n == "decoder")
        for n, stack in stacks.items()
    )
    forward += 2 * _head_weights(config)
    decoder = config.decoder
    cached = 2 * decoder.layers * decoder.kv_heads * decoder.head_dim if decoder else 0
    return ModelSummary(
        family=config.family,
        layers={n: s.layers for n, s in stacks.items()},
        heads={n: s.heads for n, s in stacks.items()},
        width=config.stack.width,
        vocab_size=config.stack.vocab_size,
        context_length=context_length,
        parameters=parameters,
        total=total,
        tied=config.head.tied,
        flops_forward=forward,
        flops_training=3 * forward,
        weight_bytes={kind: total * size for kind, size in BYTES_PER_NUMBER.items()},
        cache_bytes_per_token={kind: cached * size for kind, size in BYTES_PER_NUMBER.items()},
        cross_bytes_per_source_token={
            kind: cached * size if config.family == "seq2seq" else 0 for kind, size in BYTES_PER_NUMBER.items()
        },
    )


def component_of(name: str) -> str:
    """Which part of the house a parameter belongs to."""
    if name.startswith("head."):
        return "head"
    if "norm" in name:
        return "norms"
    if "embedding." in name:
        return "embedding"
    return "mlp" if ".ffn." in name else "attention"


def _stack_flops(stack: StackConfig, context_length: int, *, causal: bool, cross: bool) -> int:
    """Per token, forward: matrices and attention, for every layer (shared weights are used once a layer)."""
    inner, kv = stack.heads * stack.head_dim, stack.kv_heads * stack.head_dim
    attention = stack.width * (2 * inner + 2 * kv)
    gates = 2 if stack.feedforward.endswith("glu") or "glu_" in stack.feedforward else 1
    weights = attention * (2 if cross else 1) + stack.width * stack.ffn_width * (1 + gates)
    flops = 0
    for layer in range(stack.layers):
        window = stack.window_of(layer)
        seen = min(context_length, window + 1 if causal else 2 * window + 1) if window else context_length
        flops += 2 * weights + 4 * inner * (seen + (context_length if cross else 0))
    if stack.embedding_width:
        flops += 2 * stack.embedding_width * stack.width
    return flops


def _head_weights(config: Config) -> int:
    head, width = config.head, config.stack.width
    inner = config.stack.embedding_width if head.tied and config.stack.embedding_width else width
    return (width * inner if head.dense != "none" else 0) + inner * head.outputs
