"""Direct logit attribution: how much each head, each feed-forward and the embedding add to a logit.

The residual stream is a sum: the embedding, plus the output of every head and of every feed-forward. The rest of the
way to a logit is linear, if the scale of each norm is held at the value that it has in this run:

    LayerNorm(Σ cᵢ) = Σ (cᵢ − mean(cᵢ)) / σ · g + b          σ of the whole sum        RMSNorm(Σ cᵢ) = Σ cᵢ / rms · g

In a post-norm stack, a component passes through every later norm of its stack. In a sandwich block, it passes through
the norm of its own sublayer. The dense layer in the head of a masked language model has an activation f. Its output is
f(h) = h · f(h)/h, and the factor f(h)/h is held, too. So the contributions of all components add up to the logit.

N components, K outputs, T tokens, H heads, D head dim, C model width, L layers
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from qkv.blocks import Stack
from qkv.blocks.attention import Attention
from qkv.blocks.block import Block, ResidualWrapper
from qkv.errors import UsageError
from qkv.inside.attention import output_matrices
from qkv.inside.lens import check_vocabulary_head
from qkv.inside.sites import require_blocks
from qkv.inside.trace import Trace
from qkv.models import Network

ATTRIBUTION_SITES = ("*.0.resid_pre", "*z", "*mlp_out", "logits")
"""The sites that `logit_attribution` reads from a trace."""


@dataclass(frozen=True)
class Component:
    """A part of the model that adds to the residual stream."""

    kind: Literal["embedding", "head", "cross_head", "mlp", "bias"]  # "bias": all biases of attention, norms and head
    layer: int | None = None
    head: int | None = None

    @property
    def name(self) -> str:
        """A short name: "L3 head 5", "L3 cross head 5", "L3 mlp", "embedding", "bias"."""
        if self.layer is None:
            return self.kind
        kind = self.kind.replace("_", " ")
        return f"L{self.layer} {kind}" if self.head is None else f"L{self.layer} {kind} {self.head}"


@dataclass(frozen=True)
class Attribution:
    """The contribution of each component to each logit. The contributions to a logit add up to it."""

    components: tuple[Component, ...]
    values: Tensor  # (N, K)
    outputs: tuple[int, ...]  # K token ids
    logits: Tensor  # (K,)
    position: int

    def heads(self, column: int = 0, *, cross: bool = False) -> Tensor:
        """Return the contributions of the heads to one output as a matrix, (L, H)."""
        kind = "cross_head" if cross else "head"
        rows = [i for i, component in enumerate(self.components) if component.kind == kind]
        if not rows:
            raise UsageError("this model has no cross-attention; leave out cross=True")
        num_heads = 1 + max(self.components[i].head or 0 for i in rows)
        return self.values[rows, column].view(-1, num_heads)

    def mlps(self, column: int = 0) -> Tensor:
        """Return the contributions of the feed-forwards to one output, (L,)."""
        return self.values[[i for i, component in enumerate(self.components) if component.kind == "mlp"], column]


def logit_attribution(
    network: Network, trace: Trace, *, position: int = -1, outputs: int | Sequence[int] | None = None
) -> Attribution:
    """Attribute logits at one position of a trace, which must have the sites `ATTRIBUTION_SITES`.

    `outputs` are token ids (default: the most probable token). The contribution to the difference of two logits is the
    difference of their contributions.
    """
    check_vocabulary_head(network)
    position, chosen = _check_outputs(trace, position, outputs)
    stack = network.output_stack
    require_blocks(network.config, "logit attribution")
    if stack.config.residual == "none":
        raise UsageError(
            f'the {stack.name} has residual = "none": without skip connections, the logits are not a sum over layers, '
            "so they cannot be attributed; use activation patching (qkv.inside.activation_patching) instead"
        )
    parts = _Parts(trace[f"{stack.name}.0.resid_pre"][position].double())
    for layer in range(stack.config.layers):
        _add_layer(parts, stack, layer, trace, position)
    if stack.norm is not None:
        parts.normalize(stack.norm)
    _apply_head(parts, network, chosen)
    components = (*parts.components, Component("bias"))
    values = torch.cat([parts.vectors, parts.bias[None]])
    return Attribution(components, values, tuple(chosen), trace["logits"][position, chosen], position)


class _Parts:
    """The components of the residual stream at one position, and the sum of all biases, in float64."""

    def __init__(self, embedding: Tensor) -> None:
        self.components = [Component("embedding")]
        self.vectors = embedding[None]  # (N, C)
        self.bias = torch.zeros_like(embedding)  # (C,)

    @property
    def total(self) -> Tensor:
        return self.vectors.sum(0) + self.bias

    def add(self, other: "_Parts") -> None:
        self.components += other.components
        self.vectors, self.bias = torch.cat([self.vectors, other.vectors]), self.bias + other.bias

    def normalize(self, norm: nn.Module) -> None:
        """Apply a norm to every component, with the scale that the norm has for their sum."""
        x = self.total
        if isinstance(norm, nn.LayerNorm):
            scale = (x.var(unbiased=False) + norm.eps).sqrt()
            self.vectors = (self.vectors - self.vectors.mean(-1, keepdim=True)) / scale
            self.bias = (self.bias - self.bias.mean()) / scale
        elif isinstance(norm, nn.RMSNorm):
            scale = (x.square().mean() + (norm.eps or torch.finfo(x.dtype).eps)).sqrt()
            self.vectors, self.bias = self.vectors / scale, self.bias / scale
        elif isinstance(norm, nn.Identity):  # norm = "none"
            return
        else:
            raise TypeError(f"unknown norm {type(norm).__name__}")
        if norm.weight is not None:
            gain = _float64(norm.weight)
            self.vectors, self.bias = self.vectors * gain, self.bias * gain
        bias = getattr(norm, "bias", None)
        if bias is not None:
            self.bias = self.bias + _float64(bias)

    def project(self, weight: Tensor, bias: Tensor | None) -> None:
        """Apply a linear map with a weight (out, C)."""
        weight = _float64(weight)
        self.vectors, self.bias = self.vectors @ weight.T, weight @ self.bias
        if bias is not None:
            self.bias = self.bias + _float64(bias)

    def scale(self, factor: Tensor | float) -> None:
        self.vectors, self.bias = self.vectors * factor, self.bias * factor


def _add_layer(parts: _Parts, stack: Stack, layer: int, trace: Trace, position: int) -> None:
    """Add the components of one layer, in the order of the block."""
    block, prefix = stack.block_of(layer), f"{stack.name}.{layer}."
    assert isinstance(block, Block)

    def attention_parts(attention: Attention, kind: Literal["head", "cross_head"], site: str) -> _Parts:
        z = trace[prefix + site][:, position].double()  # (H, D)
        update = _Parts(torch.zeros(stack.config.width, dtype=torch.float64))
        update.components = [Component(kind, layer, head) for head in range(attention.heads)]
        update.vectors = torch.einsum("hd,hdc->hc", z, output_matrices(attention).double())
        if attention.out.bias is not None:
            update.bias = _float64(attention.out.bias)
        return update

    def add_sublayer(update: _Parts, sublayer: ResidualWrapper) -> None:
        if sublayer.norm_out is not None:
            update.normalize(sublayer.norm_out)
        if sublayer.gain is not None:
            update.scale(_float64(sublayer.gain))
        parts.add(update)
        if sublayer.norm_placement == "post":
            parts.normalize(sublayer.norm)

    add_sublayer(attention_parts(block.attention, "head", "z"), block.attention_sub)
    if block.cross is not None and block.cross_sub is not None:
        add_sublayer(attention_parts(block.cross, "cross_head", "cross_z"), block.cross_sub)
    mlp = _Parts(trace[prefix + "mlp_out"][position].double())
    mlp.components = [Component("mlp", layer)]
    add_sublayer(mlp, block.ffn_sub)


def _apply_head(parts: _Parts, network: Network, outputs: Sequence[int]) -> None:
    head = network.head
    parts.scale(head.scale)
    if head.dense is not None:
        parts.project(head.dense.weight, head.dense.bias)
        parts.scale(_ratio(head.activation, parts.total))
    if head.norm is not None:
        parts.normalize(head.norm)
    assert head.out is not None
    chosen = torch.tensor(list(outputs), device=head.out.weight.device)
    bias = None if head.out.bias is None else head.out.bias[chosen]
    parts.project(head.out.weight[chosen], bias)
    if cap := head.config.logit_cap:
        parts.scale(_ratio(lambda logits: cap * torch.tanh(logits / cap), parts.total))


def _ratio(function: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """Return f(x)/x, which has a limit at 0 for the functions here."""
    tiny = torch.full_like(x, 1e-9)
    x = torch.where(x.abs() < tiny, tiny, x)
    return function(x) / x


def _check_outputs(trace: Trace, position: int, outputs: int | Sequence[int] | None) -> tuple[int, list[int]]:
    """Return the position, counted from 0, and the token ids whose logits are attributed."""
    missing = "the trace has no logits; record it with sites=qkv.inside.ATTRIBUTION_SITES"
    if "logits" not in trace:
        raise UsageError(missing)
    length, vocab_size = trace["logits"].shape
    if not -length <= position < length:
        raise UsageError(f"position {position}: the trace has {length} positions, 0 … {length - 1}")
    position %= length
    if outputs is None:
        return position, [int(trace["logits"][position].argmax())]
    chosen = [outputs] if isinstance(outputs, int) else [int(i) for i in outputs]
    wrong = [i for i in chosen if not 0 <= i < vocab_size]
    if wrong:
        raise UsageError(f"outputs: token id {wrong[0]} is outside this model's vocabulary of {vocab_size}")
    return position, chosen


def _float64(tensor: Tensor) -> Tensor:
    return tensor.detach().cpu().double()
