"""Fast paths declare which parts, which values of the config's `Literal` fields, and which modules they implement.

A fast path is other code that computes the same results as `Stack`. It would silently ignore a config value that it
does not implement. So every fast path lists the values that it implements, and `supports` returns False for all others,
including a registered part, a new `Literal` field of `StackConfig` and a number in `REFERENCE_FIELDS`. The call then
runs on another fast path that supports it, or on the reference. `EVERY_CHOICE` below is the list of the CPU step and
the GPU steps, and the fused kernels have their own in `gpu/fused_step.py`. `tests/decode/test_backend.py` decodes with
every value of `EVERY_CHOICE` and compares the result with the reference.

A config does not say everything: a module of the network may have been replaced, or its forward pass. `is_unmodified`
finds such networks, and every fast path leaves them to the reference.
"""

from collections.abc import Mapping
from functools import cache
from typing import Literal, get_origin, get_type_hints

from torch import nn

from qkv.blocks import Embedding, Head, Stack, StackConfig
from qkv.blocks.attention import CrossAttention, SelfAttention
from qkv.blocks.block import Block, ResidualWrapper
from qkv.blocks.dropout import Dropout
from qkv.blocks.feedforward import FeedForward
from qkv.blocks.norm import RMSNorm
from qkv.blocks.parts import PARTS
from qkv.blocks.position import LearnedPositions, RotaryPositions, ScoreBias, SinusoidalPositions
from qkv.models import Decoder, Seq2Seq

Choices = Mapping[str, frozenset[str]]
"""For each field of `StackConfig` that names a choice, the values that a fast path implements."""

UNUSED_FIELDS = frozenset({"init"})
"""The `Literal` fields that do not affect a forward pass."""

EVERY_CHOICE: Choices = {
    "position": frozenset({"sinusoidal", "sinusoidal_split", "learned", "rotary", "alibi", "t5", "none"}),
    "norm": frozenset({"layernorm", "rmsnorm"}),
    "norm_placement": frozenset({"pre", "post", "sandwich"}),
    "norm_affine": frozenset({"gain_bias", "gain", "none"}),
    "embedding_norm": frozenset({"none", "extra", "replaces_first"}),
    "qk_norm": frozenset({"none", "head"}),
    "feedforward": frozenset(
        {"relu", "relu2", "gelu", "gelu_tanh", "silu", "reglu", "reglu2", "geglu", "geglu_tanh", "swiglu"}
    ),
    "bias": frozenset({"all", "attention", "qkv", "none"}),
    "residual": frozenset({"serial", "parallel"}),
    "router_softmax": frozenset({"chosen"}),
    "score_scale": frozenset({"sqrt", "none"}),
    "attention_sinks": frozenset({"none"}),
    "value_residual": frozenset({"none"}),
    "embedding_scale": frozenset({"none", "sqrt"}),
    "block": frozenset({"transformer"}),
    "attention": frozenset({"softmax"}),
    "recurrent_attention": frozenset({"additive"}),
}
"""The values that the CPU step and the GPU steps implement. Extend this table only together with them."""

REFERENCE_FIELDS = ("score_cap", "layer_scale")
"""The numbers that no fast path implements: it declines a stack where they are not 0."""


@cache
def choice_fields() -> tuple[str, ...]:
    """Return the fields of `StackConfig` that name a part or another choice and affect a forward pass."""
    literals = [name for name, hint in get_type_hints(StackConfig).items() if get_origin(hint) is Literal]
    return (*PARTS, *(name for name in literals if name not in UNUSED_FIELDS))


def supports(choices: Choices, config: StackConfig) -> bool:
    """Return whether a fast path that implements `choices` can run a stack with this config."""
    return all(getattr(config, name) in choices.get(name, ()) for name in choice_fields()) and not any(
        getattr(config, name) for name in REFERENCE_FIELDS
    )


REPLICATED = (
    *(Decoder, Seq2Seq, Embedding, Stack, Head, Block, ResidualWrapper, SelfAttention, CrossAttention, FeedForward),
    *(ScoreBias, RotaryPositions, nn.ModuleList, Dropout, nn.Identity),
)
"""The modules whose computation a fast path repeats in its own code, or leaves out."""
CALLABLE = (nn.Linear, nn.LayerNorm, RMSNorm, nn.Embedding, LearnedPositions, SinusoidalPositions)
"""The linear maps, norms and tables of the built-in parts."""
CALLED = frozenset({"qkv", "q", "kv", "out", "up", "down", "dense", "project", "norm", "norm_out", "q_norm", "k_norm"})
CALLED |= {"token", "position", "types", "table", "front_ends", "back_ends", "future"}
"""The names of linear maps, norms, tables, front ends and back ends in these modules. They may be of any type: an
unknown one is called."""


def is_unmodified(network: nn.Module) -> bool:
    """Return whether a fast path knows all modules of a network: no subclass, no hook, no `forward` of an instance."""
    return (
        type(network) in REPLICATED
        and not (isinstance(network, FeedForward) and network.has_own_activation)
        and all(
            is_unmodified(child) if name not in CALLED else not is_patched(child)
            for name, child in network._modules.items()
            if child is not None
        )
        and not is_patched(network)
    )


def is_patched(module: nn.Module) -> bool:
    """Return whether a module has a hook, or a `forward` that its class does not have."""
    return "forward" in vars(module) or bool(module._forward_hooks or module._forward_pre_hooks)
