"""Make plain functions from the modules of a block.

On a CPU the matrix products of a step are small, and the overhead of modules, masks and taps (which record activations)
takes longer than the products. The functions here are made from a block before the first step. They run the same
operators on the same numbers in the same order. `Block` is the reference. Read `Block` first: it shows the computation.

M tokens, C width
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from qkv.blocks.block import Block, ResidualWrapper
from qkv.blocks.feedforward import FeedForward
from qkv.blocks.norm import RMSNorm
from qkv.decode.cpu.packed_linear import QuantizedLinear, make_packed_linear

VectorFunction = Callable[[Tensor], Tensor]
SublayerFunction = Callable[[Tensor, Any], Tensor]
"""A function of vectors (M, C) and a context. It computes a sublayer up to the input of its last linear map, or a whole
block (`make_block`)."""
ResidualFunction = Callable[[Tensor, Tensor, Any], Tensor]
"""A function of the residual stream (M, C), vectors x (M, C) and the context. It returns residual + sublayer(x)."""


def make_block(
    block: Block, attend: SublayerFunction, attend_source: SublayerFunction | None = None
) -> SublayerFunction:
    """Return a block as a function. `attend` and `attend_source` compute attention without its output projection."""
    attention = residual_sublayer(block.attention_sub, attend, block.attention.out)
    feedforward = residual_sublayer(block.ffn_sub, make_feedforward(block.ffn), block.ffn.down)
    if block.parallel:
        return lambda x, context: feedforward(attention(x, x, context), x, context)  # both read the same x
    sublayers = [(block.attention_sub, attention), (block.ffn_sub, feedforward)]
    if attend_source is not None and block.cross is not None and block.cross_sub is not None:
        cross = residual_sublayer(block.cross_sub, attend_source, block.cross.out)
        sublayers.insert(1, (block.cross_sub, cross))
    return serial_block(sublayers)


def residual_sublayer(wrapper: ResidualWrapper, sublayer: SublayerFunction, out: nn.Module) -> ResidualFunction:
    """Return a function that computes residual + out(sublayer(norm(x))). `out` is the sublayer's last linear map.

    With sandwich norms, a second norm follows `out`. With post-norm there is no norm here: `serial_block` runs it.
    """
    norm, add = make_norm(wrapper.norm), make_linear_add(out)
    if wrapper.norm_placement == "post":
        return lambda residual, x, context: add(residual, sublayer(x, context))
    if wrapper.norm_out is None:
        return lambda residual, x, context: add(residual, sublayer(norm(x), context))
    project, norm_out = make_linear(out), make_norm(wrapper.norm_out)
    return lambda residual, x, context: norm_out(project(sublayer(norm(x), context))).add_(residual)


def serial_block(parts: Sequence[tuple[ResidualWrapper, ResidualFunction]]) -> SublayerFunction:
    """Return a function that runs the sublayers one after another, each with its post-norm if it has one."""
    steps = [(add, make_norm(wrapper.norm) if wrapper.norm_placement == "post" else None) for wrapper, add in parts]

    def block(x: Tensor, context: Any) -> Tensor:
        for add, norm in steps:
            x = add(x, x, context)
            if norm is not None:
                x = norm(x)
        return x

    return block


def make_feedforward(ffn: FeedForward) -> SublayerFunction:
    """Return the feed-forward without its last linear map as a function."""
    up, activation = make_linear(ffn.up), torch.relu_ if ffn.activation is F.relu else ffn.activation
    if not ffn.gated:
        return lambda x, context: activation(up(x))

    def gated_feedforward(x: Tensor, context: Any) -> Tensor:
        gate, value = up(x).chunk(2, dim=-1)
        return activation(gate) * value

    return gated_feedforward


def make_linear(linear: nn.Module) -> VectorFunction:
    """Return a linear map as a function of x (M, I)."""
    if type(linear) is nn.Linear:
        return make_packed_linear(linear)
    return linear.forward if isinstance(linear, QuantizedLinear) else linear


def make_linear_add(linear: nn.Module) -> Callable[[Tensor, Tensor], Tensor]:
    """Return a function of `residual` and x that computes residual + linear(x)."""
    if isinstance(linear, QuantizedLinear):
        return linear.add_to
    project = make_linear(linear)
    return lambda residual, x: project(x).add_(residual)


def make_norm(norm: nn.Module) -> VectorFunction:
    """Return a norm as a function."""
    if type(norm) is nn.LayerNorm:
        shape, weight, bias, eps = list(norm.normalized_shape), norm.weight, norm.bias, norm.eps
        return lambda x: torch.layer_norm(x, shape, weight, bias, eps, False)
    return make_rms_norm(norm) if type(norm) is RMSNorm else norm


def make_rms_norm(norm: RMSNorm) -> VectorFunction:
    """Return an RMSNorm as a function. For one vector it runs two operators, where torch's own norm runs six."""
    shape, weight, eps, width = list(norm.normalized_shape), norm.weight, norm.eps, norm.normalized_shape[-1]
    if weight is None or not eps or weight.dtype not in (torch.float32, torch.float64):
        return lambda x: torch.rms_norm(x, shape, weight, eps)
    zero = torch.zeros((), dtype=weight.dtype)

    def rms_norm(x: Tensor) -> Tensor:
        if x.numel() != width or x.dtype != weight.dtype:
            return torch.rms_norm(x, shape, weight, eps)
        vector = x.reshape(-1)
        inverse_rms = (float(torch.dot(vector, vector)) / width + eps) ** -0.5
        return torch.addcmul(zero, x, weight, value=inverse_rms)

    return rms_norm
