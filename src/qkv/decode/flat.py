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
from qkv.decode.packed import packing_map
from qkv.decode.quantise import Int8Linear

Map = Callable[[Tensor], Tensor]
Part = Callable[[Tensor, Any], Tensor]
"""A part of a block without its last linear map: vectors (M, C), and what all layers share → what that map reads."""
Adding = Callable[[Tensor, Tensor, Any], Tensor]
"""The stream and vectors x, both (M, C) → the stream and what a part makes of x, added up."""


def adding(sub: Sublayer, part: Part, out: nn.Module) -> Adding:
    """A part, its last linear map, the norms before and after, and the sum."""
    norm, onto = norm_of(sub.norm), onto_of(out)
    if sub.place == "post":
        return lambda stream, x, now: onto(stream, part(x, now))
    if sub.norm_out is None:
        return lambda stream, x, now: onto(stream, part(norm(x), now))
    project, norm_out = linear_of(out), norm_of(sub.norm_out)
    return lambda stream, x, now: norm_out(project(part(norm(x), now))).add_(stream)


def serial(parts: Sequence[tuple[Sublayer, Adding]]) -> Part:
    """One part after the other, each followed by its post-norm where it has one."""
    steps = [(add, norm_of(sub.norm) if sub.place == "post" else None) for sub, add in parts]

    def block(x: Tensor, now: Any) -> Tensor:
        for add, norm in steps:
            x = add(x, x, now)
            if norm is not None:
                x = norm(x)
        return x

    return block


def parallel(attend: Adding, think: Adding) -> Part:
    """Both parts read the same x."""
    return lambda x, now: think(attend(x, x, now), x, now)


def feedforward_of(ffn: FeedForward) -> Part:
    up, bend = linear_of(ffn.up), torch.relu_ if ffn.bend is F.relu else ffn.bend
    if not ffn.gated:
        return lambda x, now: bend(up(x))

    def part(x: Tensor, now: Any) -> Tensor:
        gate, value = up(x).chunk(2, dim=-1)
        return bend(gate) * value

    return part


def linear_of(linear: nn.Module) -> Map:
    """A linear map of x (M, I), as a plain function."""
    if type(linear) is nn.Linear:
        return packing_map(linear)
    return linear.forward if type(linear) is Int8Linear else linear


def onto_of(linear: nn.Module) -> Callable[[Tensor, Tensor], Tensor]:
    """The stream and vectors → the stream + linear(vectors)."""
    if type(linear) is Int8Linear:
        return linear.onto
    project = linear_of(linear)
    return lambda stream, x: project(x).add_(stream)


def norm_of(norm: nn.Module) -> Map:
    if type(norm) is nn.LayerNorm:
        shape, weight, bias, eps = list(norm.normalized_shape), norm.weight, norm.bias, norm.eps
        return lambda x: torch.layer_norm(x, shape, weight, bias, eps, False)
    return norm
