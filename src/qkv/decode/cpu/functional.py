"""A block laid out flat: the functions that it calls, without the modules around them.

On a CPU, where a step's products are small, modules, masks and taps take longer than the products. What runs in their
place is made here, once a run, from a block: the same operators on the same numbers in the same order. `Block` stays
the reference, and the only thing to read for what a block is.

R rows, M tokens, C width
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from qkv.blocks.block import Sublayer
from qkv.blocks.feedforward import FeedForward
from qkv.decode.cpu.int8 import Int8Linear
from qkv.decode.cpu.packed_linear import make_packed_linear

VectorFunction = Callable[[Tensor], Tensor]
SublayerFunction = Callable[[Tensor, Any], Tensor]
"""A part of a block without its last linear map: vectors (M, C), and what all layers share → what that map reads."""
ResidualFunction = Callable[[Tensor, Tensor, Any], Tensor]
"""The stream and vectors x, both (M, C) → the stream and what a part makes of x, added up."""


def residual_sublayer(sub: Sublayer, sublayer: SublayerFunction, out: nn.Module) -> ResidualFunction:
    """A part, its last linear map, the norms before and after, and the sum."""
    norm, onto = make_norm(sub.norm), make_linear_add(out)
    if sub.norm_placement == "post":
        return lambda stream, x, now: onto(stream, sublayer(x, now))
    if sub.norm_out is None:
        return lambda stream, x, now: onto(stream, sublayer(norm(x), now))
    project, norm_out = make_linear(out), make_norm(sub.norm_out)
    return lambda stream, x, now: norm_out(project(sublayer(norm(x), now))).add_(stream)


def serial_block(parts: Sequence[tuple[Sublayer, ResidualFunction]]) -> SublayerFunction:
    """One part after the other, each followed by its post-norm where it has one."""
    steps = [(add, make_norm(sub.norm) if sub.norm_placement == "post" else None) for sub, add in parts]

    def block(x: Tensor, now: Any) -> Tensor:
        for add, norm in steps:
            x = add(x, x, now)
            if norm is not None:
                x = norm(x)
        return x

    return block


def parallel_block(attend: ResidualFunction, feedforward: ResidualFunction) -> SublayerFunction:
    """Both parts read the same x."""
    return lambda x, now: feedforward(attend(x, x, now), x, now)


def make_feedforward(ffn: FeedForward) -> SublayerFunction:
    up, bend = make_linear(ffn.up), torch.relu_ if ffn.activation is F.relu else ffn.activation
    if not ffn.gated:
        return lambda x, now: bend(up(x))

    def part(x: Tensor, now: Any) -> Tensor:
        gate, value = up(x).chunk(2, dim=-1)
        return bend(gate) * value

    return part


def make_linear(linear: nn.Module) -> VectorFunction:
    """A linear map of x (M, I), as a plain function."""
    if type(linear) is nn.Linear:
        return make_packed_linear(linear)
    return linear.forward if type(linear) is Int8Linear else linear


def make_linear_add(linear: nn.Module) -> Callable[[Tensor, Tensor], Tensor]:
    """The stream and vectors → the stream + linear(vectors)."""
    if type(linear) is Int8Linear:
        return linear.add_to
    project = make_linear(linear)
    return lambda stream, x: project(x).add_(stream)


def make_norm(norm: nn.Module) -> VectorFunction:
    if type(norm) is nn.LayerNorm:
        shape, weight, bias, eps = list(norm.normalized_shape), norm.weight, norm.bias, norm.eps
        return lambda x: torch.layer_norm(x, shape, weight, bias, eps, False)
    return norm
