"""Fast paths declare which values of the config's `Literal` fields they implement.

A fast path is other code that computes the same results as `Stack`. It would silently ignore a config value that it
does not implement. So every fast path lists the values that it implements, and `supports` returns False for all others,
including a new `Literal` field of `StackConfig`. The call then runs on another fast path that supports it, or on the
reference. `EVERY_CHOICE` below is the list of the CPU step and the GPU steps, and the fused kernels have their own in
`gpu/fused_step.py`. `tests/decode/test_backend.py` decodes with every value of `EVERY_CHOICE` and compares the result
with the reference.
"""

from collections.abc import Mapping
from functools import cache
from typing import Literal, get_args, get_origin, get_type_hints

from qkv.blocks import StackConfig

Choices = Mapping[str, frozenset[str]]
"""For each `Literal` field of `StackConfig`, the values that a fast path implements."""

UNUSED_FIELDS = frozenset({"init"})
"""The `Literal` fields that do not affect a forward pass."""

EVERY_CHOICE: Choices = {
    "position": frozenset({"sinusoidal", "sinusoidal_split", "learned", "rotary", "alibi", "t5", "none"}),
    "norm": frozenset({"layernorm", "rmsnorm"}),
    "norm_placement": frozenset({"pre", "post", "sandwich"}),
    "norm_affine": frozenset({"gain_bias", "gain", "none"}),
    "embedding_norm": frozenset({"none", "extra", "replaces_first"}),
    "qk_norm": frozenset({"none", "head"}),
    "feedforward": frozenset({"relu", "gelu", "gelu_tanh", "silu", "reglu", "geglu", "geglu_tanh", "swiglu"}),
    "bias": frozenset({"all", "attention", "qkv", "none"}),
    "residual": frozenset({"serial", "parallel"}),
    "score_scale": frozenset({"sqrt", "none"}),
    "embedding_scale": frozenset({"none", "sqrt"}),
    "recurrence": frozenset({"none"}),
    "recurrent_attention": frozenset({"additive"}),
}
"""The values that the CPU step and the GPU steps implement. Extend this table only together with them."""


@cache
def literal_fields() -> dict[str, tuple[str, ...]]:
    """Return the `Literal` fields of `StackConfig` that affect a forward pass, with their values."""
    hints = get_type_hints(StackConfig).items()
    return {name: get_args(hint) for name, hint in hints if get_origin(hint) is Literal and name not in UNUSED_FIELDS}


def supports(choices: Choices, config: StackConfig) -> bool:
    """Return whether a fast path that implements `choices` can run a stack with this config."""
    return all(getattr(config, name) in choices.get(name, ()) for name in literal_fields())
