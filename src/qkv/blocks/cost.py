"""What the parts cost: parameters, FLOPs, and the numbers that training keeps. `parts.py` has the table of parts.

A multiply-add counts as two FLOPs, so a matrix costs 2 FLOPs per weight and token, and attention 4·H·D per key (scores
and weighted values). Norms, activation functions, softmaxes and look-ups count as 0 FLOPs.

The numbers that a forward pass keeps for the backward pass depend on kernels and compilers, so they are estimates. For
recurrent layers, the estimate is the maximum that we measured on a CPU, with dropout.

C model width, H heads, D head dim, F width of the feed-forward
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

StackConfig = Any  # `qkv.blocks.config` imports `qkv.blocks.parts`, which imports this module
GATES = {"RNN": 1, "GRU": 3, "LSTM": 4}
"""The matrices of a recurrent layer for its input, and for its state."""
RECURRENT_ACTIVATIONS = {"RNN": 3, "GRU": 9, "LSTM": 25}
"""In multiples of C. For documents of unequal length, an LSTM keeps 9."""


@dataclass(frozen=True)
class PartCost:
    """The cost of one or several parts. FLOPs are per token, for the forward pass."""

    parameters: Mapping[str, int] | None = None  # by component, such as "mlp"; None: to be counted
    flops: int | None = None  # None: unknown
    flops_per_key: int = 0  # for each token that a token attends to
    flops_per_source_key: int = 0  # for each source token that a token attends to
    activations: int = 0  # numbers per token and layer that the backward pass needs
    cached: int = 0  # numbers per token that decoding keeps
    cached_of_source: int = 0  # numbers per source token that decoding keeps
    state: int = 0  # numbers per sequence that decoding keeps
    unused: int = 0  # parameters that a token does not use, because other experts have them
    unstated: tuple[str, ...] = ()  # the parts that do not state their FLOPs, which then count as 0

    def __add__(self, other: "PartCost") -> "PartCost":
        a, b = self.parameters or {}, other.parameters or {}
        return PartCost(
            {name: a.get(name, 0) + b.get(name, 0) for name in {**a, **b}},
            (self.flops or 0) + (other.flops or 0),
            **{name: getattr(self, name) + getattr(other, name) for name in NUMBERS},
            unstated=tuple(dict.fromkeys(self.unstated + other.unstated)),
        )


NUMBERS = [field.name for field in fields(PartCost) if field.type == "int" or field.type is int]


def linear(inputs: int, outputs: int, *, bias: bool) -> int:
    """Return the number of parameters of a linear map."""
    return inputs * outputs + (outputs if bias else 0)


def feedforward_cost(stack: StackConfig, *, activation: str, gated: bool = False) -> PartCost:
    """The cost of `FeedForward`."""
    up, bias = stack.ffn_width * (2 if gated else 1), stack.bias == "all"
    parameters = linear(stack.width, up, bias=bias) + linear(stack.ffn_width, stack.width, bias=bias)
    return PartCost(
        {"mlp": parameters},
        2 * stack.width * (up + stack.ffn_width),
        activations=(4 if gated else 2) * stack.ffn_width,
    )


def experts_cost(stack: StackConfig, *, activation: str, gated: bool) -> PartCost:
    """The cost of `Experts`: all experts have parameters, and a token uses some of them."""
    expert, router = feedforward_cost(stack, activation=activation, gated=gated), stack.width * stack.experts
    size = (expert.parameters or {})["mlp"]
    return PartCost(
        {"mlp": stack.experts * size + router},
        stack.experts_per_token * (expert.flops or 0) + 2 * router,
        activations=stack.experts_per_token * (expert.activations + 2 * stack.width) + 3 * stack.experts,
        unused=(stack.experts - stack.experts_per_token) * size,
    )


def attention_cost(stack: StackConfig, *, cross: bool = False) -> PartCost:
    """The cost of `SelfAttention` or `CrossAttention`, without the norms of queries and keys."""
    inner, kv = stack.heads * stack.head_dim, stack.kv_heads * stack.head_dim
    parameters = linear(stack.width, inner + 2 * kv, bias=stack.bias != "none")
    parameters += linear(inner, stack.width, bias=stack.bias in ("all", "attention"))
    parameters += stack.heads if stack.attention_sinks == "learned" else 0
    parameters += 1 if stack.value_residual == "first" and not cross else 0
    return PartCost(
        {"attention": parameters},
        2 * stack.width * (2 * inner + 2 * kv),
        flops_per_key=0 if cross else 4 * inner,
        flops_per_source_key=4 * inner if cross else 0,
        activations=(2 if cross else 4) * inner,
        cached=0 if cross else 2 * kv,
        cached_of_source=2 * kv if cross else 0,
    )


def layernorm_cost(stack: StackConfig, width: int) -> PartCost:
    """The cost of a LayerNorm."""
    return PartCost({"norms": {"gain_bias": 2 * width, "gain": width, "none": 0}[stack.norm_affine]}, 0)


def rmsnorm_cost(stack: StackConfig, width: int) -> PartCost:
    """The cost of an RMSNorm."""
    return PartCost({"norms": 0 if stack.norm_affine == "none" else width}, 0)


def no_cost(*arguments: object, **options: object) -> PartCost:
    """The cost of a part without parameters and matrix products."""
    return PartCost({}, 0)


def learned_position_cost(stack: StackConfig) -> PartCost:
    """The cost of a table of position vectors."""
    rows = stack.max_positions + stack.position_offset
    return PartCost({"embedding": rows * (stack.embedding_width or stack.width)}, 0)


def t5_position_cost(stack: StackConfig, *, learned: bool) -> PartCost:
    """The cost of a table with a bias for each bucket of distances and each head."""
    return PartCost({"attention": stack.relative_buckets * stack.heads}, 0)


def recurrent_cost(stack: StackConfig, *, causal: bool, cross: bool, layer: str, name: str = "") -> PartCost:
    """The cost of a `RecurrentStack`: 2 FLOPs per matrix weight and token, whatever the length."""
    width, gates, num_states = stack.width, GATES[layer], 2 if layer == "LSTM" else 1
    inputs, states = stack.layers * width, stack.layers * width
    if not causal:
        states //= 2  # each direction has half of the width
    has_attention = cross and stack.recurrent_attention == "additive"
    if has_attention:
        inputs += width  # the first layer also reads the context
    matrices = gates * width * (inputs + states)
    recurrent = matrices + 2 * gates * width * stack.layers  # torch has two biases for each gate
    if cross:  # the map from the source to the first state
        recurrent += linear(width, stack.layers * num_states * width, bias=True)
    return PartCost(
        # additive attention: the maps of the query and of the key (with bias), and the score vector
        {"recurrent": recurrent, "attention": 2 * width**2 + 2 * width if has_attention else 0},
        2 * (matrices + (2 * width**2 if has_attention else 0)),
        flops_per_source_key=4 * width if has_attention else 0,
        activations=RECURRENT_ACTIVATIONS[layer] * width,
        cached_of_source=2 * width if cross else 0,
        state=stack.layers * num_states * width,
    )


def recurrent_activations(
    stack: StackConfig, tokens: int, source_tokens: int, source_length: int, checkpointing: bool, *, layer: str
) -> int:
    """The numbers that training keeps of a `RecurrentStack`. `source_length` is the length S of the longest source.

    Additive attention keeps (S + 14) C numbers for each token.
    """
    numbers, width = RECURRENT_ACTIVATIONS[layer] * stack.width, stack.width
    kept = stack.layers * width + numbers if checkpointing else stack.layers * numbers
    if source_length and stack.recurrent_attention == "additive":
        kept += (source_length + 14) * width
    total: int = tokens * kept + 3 * width * source_tokens  # keys, and the gathered keys and values
    return total
