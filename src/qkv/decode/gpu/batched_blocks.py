"""The blocks of a decoder on the new tokens of several sequences, with the kernels of `batch_kernels`.

Between two matrix products there is one kernel: a residual sum with its norm, an activation, or attention, which the
caller passes. Without them, PyTorch would run about ten operators there, and each one costs a launch. `Block` is the
reference.

R = N · T new tokens, C width
"""

from collections.abc import Callable
from functools import partial
from typing import Any, cast

import torch
import triton
from torch import Tensor, nn
from torch.nn import functional as F

from qkv.blocks import Stack
from qkv.blocks.block import Block
from qkv.blocks.feedforward import FeedForward
from qkv.blocks.head import Head
from qkv.blocks.norm import RMSNorm
from qkv.decode.filters import NEG_INF
from qkv.decode.gpu import batch_kernels as kernels
from qkv.decode.support import EVERY_CHOICE, Choices, supports

COLUMNS_PER_PROGRAM = 1024
VOCAB_MULTIPLE = 64
"""The rows of the output matrix are padded to a multiple of this number, because matrix products need aligned rows."""

CHOICES: Choices = {
    **EVERY_CHOICE,
    "norm_placement": frozenset({"pre", "post"}),
    "embedding_norm": frozenset({"none", "extra"}),
    "residual": frozenset({"serial"}),
}
"""The config values that `BatchedBlocks` implements. Attention is the caller's."""


def is_supported(stack: Stack) -> bool:
    """Return whether the kernels implement the blocks of this stack, and none of its norms was replaced."""
    norms: list[Any] = [stack.norm]
    for block in stack.blocks:
        assert isinstance(block, Block)
        norms += [sub.norm for sub in (block.attention_sub, block.cross_sub, block.ffn_sub) if sub is not None]
    return supports(CHOICES, stack.config) and all(
        norm is None or (type(norm) in (nn.LayerNorm, RMSNorm) and not norm._forward_hooks) for norm in norms
    )


class BatchedBlocks:
    """Runs the blocks of a stack, with another implementation of attention."""

    def __init__(self, stack: Stack) -> None:
        self.stack, self.is_pre_norm = stack, stack.config.norm_placement == "pre"
        self.blocks = [cast(Block, stack.block_of(layer)) for layer in range(stack.config.layers)]

    def __call__(
        self,
        x: Tensor,
        attend: Callable[[int, Block, Tensor], Tensor],
        attend_source: Callable[[int, Block, Tensor], Tensor] | None = None,
    ) -> Tensor:
        """x (N, T, C) → (N, T, C), after the final norm if there is one. `attend` gets the layer, its block and h."""
        parts: list[tuple[nn.Module, Callable[[Tensor], Tensor]]] = []
        for layer, block in enumerate(self.blocks):
            parts.append((block.attention_sub.norm, partial(attend, layer, block)))
            if block.cross_sub is not None and attend_source is not None:
                parts.append((block.cross_sub.norm, partial(attend_source, layer, block)))
            parts.append((block.ffn_sub.norm, partial(feedforward, block.ffn)))
        if not self.is_pre_norm:
            for norm, part in parts:
                x = add_norm(x, part(x), norm)[1]
            return x
        assert self.stack.norm is not None
        following = [*(norm for norm, _ in parts[1:]), self.stack.norm]
        x, h = add_norm(x, None, parts[0][0])
        for (_, part), norm in zip(parts, following, strict=True):
            x, h = add_norm(x, part(h), norm, keep_sum=True)
        return h


def add_norm(x: Tensor, update: Tensor | None, norm: Any, *, keep_sum: bool = False) -> tuple[Tensor, Tensor]:
    """Return x + update and its norm, for x (…, C). Without `keep_sum`, the first result is x."""
    x = x.contiguous()
    width, out = x.shape[-1], torch.empty_like(x)
    total = torch.empty_like(x) if keep_sum else x
    weight, bias = getattr(norm, "weight", None), getattr(norm, "bias", None)
    kernels.add_norm[(x.numel() // width,)](
        x,
        x if update is None else update.contiguous(),
        x if weight is None else weight,
        x if bias is None else bias,
        total,
        out,
        torch.finfo(x.dtype).eps if norm.eps is None else norm.eps,
        WIDTH=width,
        PADDED=triton.next_power_of_2(width),
        NORM="rmsnorm" if isinstance(norm, RMSNorm) else "layernorm",
        UPDATE=update is not None,
        KEEP_SUM=keep_sum,
        WEIGHT=weight is not None,
        BIAS=bias is not None,
        num_warps=4 if width <= 4096 else 8,
    )
    return total, out


def feedforward(ffn: FeedForward, h: Tensor) -> Tensor:
    """Run a feed-forward network on h (…, C) with one kernel for its activation and gate."""
    up = ffn.up(h)
    width = up.shape[-1] // 2 if ffn.gated else up.shape[-1]
    out = up.new_empty(*up.shape[:-1], width)
    block = min(COLUMNS_PER_PROGRAM, triton.next_power_of_2(width))
    kernels.activate_rows[(out.numel() // width, triton.cdiv(width, block))](
        up,
        out,
        WIDTH=width,
        ACTIVATION=ffn.activation_name,
        GATED=ffn.gated,
        BLOCK=block,
        num_warps=4,
    )
    return cast(Tensor, ffn.down(out))


class AlignedOutput:
    """Projects hidden states to logits with an output matrix whose rows are padded to a multiple of 64.

    The additional columns of the logits are −∞.
    """

    def __init__(self, head: Head) -> None:
        assert head.out is not None
        self.head, self.vocab_size = head, head.out.out_features
        extra = -self.vocab_size % VOCAB_MULTIPLE
        self.padded_weight = F.pad(head.out.weight.detach(), (0, 0, 0, extra)) if extra else None
        self.weight_version = None if head.out.weight.is_inference() else head.out.weight._version

    def refresh(self) -> None:
        """Copy the output matrix again if it has changed. Call it before a graph with this output is replayed."""
        assert self.head.out is not None
        weight = self.head.out.weight
        if self.padded_weight is not None and not weight.is_inference() and self.weight_version != weight._version:
            self.padded_weight[: self.vocab_size].copy_(weight)
            self.weight_version = weight._version

    def __call__(self, x: Tensor) -> Tensor:
        """Hidden states (R, C) → logits (R, V), with more columns if the vocabulary is padded."""
        if self.padded_weight is None or self.head.out is None:
            return self.head.project(x)
        logits = F.linear(self.head.transform(x).to(self.padded_weight.dtype), self.padded_weight)
        if self.head.out.bias is not None:
            logits[:, : self.vocab_size] += self.head.out.bias
        logits[:, self.vocab_size :] = NEG_INF
        return logits
