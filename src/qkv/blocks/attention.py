"""Attention: a token asks (query), those it may see offer (key), and it takes a mixture of what they hold (value).

    Attention(Q, K, V) = softmax(QKᵀ/√D + bias + mask) V          each row of weights sums to 1

`plain` is that line, written out. The other kernels give the same numbers faster; which one runs is decided once a
forward pass, when a mask is rendered into the `Sight` that all layers share.

B batch, T queries, S keys, H query heads, KV key/value heads, D head width, C model width
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.attention.flex_attention import BlockMask, flex_attention

from qkv.blocks.cache import CrossCache, EncoderMemory, SelfCache
from qkv.blocks.config import AttentionKernel, StackConfig
from qkv.blocks.kernels.short import is_short, short_attention
from qkv.blocks.mask import DocumentOffsets, Mask
from qkv.blocks.norm import make_norm
from qkv.blocks.position import Rotary
from qkv.blocks.tap import LayerTap

MAX_DENSE_LENGTH = 512
"""Up to this length, a dense mask over all of a packed row costs less than finding its documents."""


@dataclass
class PreparedMask:
    """One mask, rendered for the kernel that will read it."""

    mask: Mask
    kernel: AttentionKernel
    bias: Tensor | None = None  # (B, H, T, S) what positions add to the scores
    dense: Tensor | None = None  # sdpa: bool, or float with the bias in it; None: all is seen, or a triangle
    fully_masked: Tensor | None = None  # sdpa: (B, 1, T, 1) queries that see nothing
    block_mask: BlockMask | None = None  # flex
    offsets: DocumentOffsets | None = None  # varlen


def choose_kernel(mask: Mask, x: Tensor, bias: Tensor | None, dropout: float) -> AttentionKernel:
    """The fastest kernel that can do it: variable-length ones for long packed rows on a GPU, else SDPA."""
    packed = mask.query.document_ids is not None and mask.query.most > 0 and x.shape[1] > MAX_DENSE_LENGTH
    kind = torch.get_autocast_dtype("cuda") if torch.is_autocast_enabled("cuda") else x.dtype
    half = kind in (torch.float16, torch.bfloat16)
    if packed and x.is_cuda and half and bias is None and not dropout:
        return "varlen"
    return "sdpa"


def prepare_mask(
    mask: Mask, x: Tensor, *, kernel: AttentionKernel = "auto", bias: Tensor | None = None, dropout: float = 0.0
) -> PreparedMask:
    """Turn a mask into what the kernel reads, once for all layers. `x` (B, T, C) gives rows, type and device."""
    if kernel == "auto":
        kernel = choose_kernel(mask, x, bias, dropout)
    if kernel in ("flex", "varlen") and (dropout or (kernel == "varlen" and bias is not None)):
        kernel = "sdpa"  # neither kernel drops weights out; variable-length ones take no bias
    sight = PreparedMask(mask, kernel, bias)
    if kernel == "flex":
        sight.block_mask = mask.block_mask()
    elif kernel == "varlen":
        sight.offsets = mask.offsets(batch_size=x.shape[0])
    elif kernel == "sdpa" and not (bias is None and (mask.is_full or mask.is_plain_causal)):
        see = mask.dense()
        if mask.query.document_ids is not None or mask.key.document_ids is not None:
            sight.fully_masked = ~see.any(dim=-1, keepdim=True)
            see = see | sight.fully_masked  # a blind query looks everywhere, and its answer is thrown away: never a NaN
        if bias is None and x.device.type != "cpu":
            sight.dense = see
        else:  # on a CPU as a sum too: torch would make it one in every layer
            sight.dense = torch.where(see, 0.0 if bias is None else bias, float("-inf")).to(x.dtype)
    return sight


def scores(q: Tensor, k: Tensor, mask: PreparedMask, scale: float) -> Tensor:
    """QKᵀ/√D + bias, −∞ where the mask hides the key; (B, H, T, S), in float32 or better."""
    exact = torch.promote_types(q.dtype, torch.float32)
    k = k.repeat_interleave(q.shape[1] // k.shape[1], dim=1)
    out = q.to(exact) @ k.to(exact).transpose(-2, -1) * scale
    if mask.bias is not None:
        out = out + mask.bias
    return out.masked_fill(~mask.mask.dense(), float("-inf"))


def pattern(scores: Tensor) -> Tensor:
    """Softmax over the keys; a query that sees nothing has a row of zeros."""
    blind = (scores == float("-inf")).all(dim=-1, keepdim=True)
    return scores.masked_fill(blind, 0.0).softmax(dim=-1).masked_fill(blind, 0.0)


def weighted_values(pattern: Tensor, v: Tensor, dtype: torch.dtype) -> Tensor:
    """The weighted sum of values, (B, H, T, D)."""
    v = v.repeat_interleave(pattern.shape[1] // v.shape[1], dim=1)
    return (pattern @ v.to(pattern.dtype)).to(dtype)


def eager(q: Tensor, k: Tensor, v: Tensor, mask: PreparedMask, scale: float, dropout: float = 0.0) -> Tensor:
    """The reference: every step a line, nothing fused, memory quadratic in length."""
    return weighted_values(F.dropout(pattern(scores(q, k, mask, scale)), dropout), v, q.dtype)


def sdpa(q: Tensor, k: Tensor, v: Tensor, mask: PreparedMask, scale: float, dropout: float = 0.0) -> Tensor:
    """Torch's scaled_dot_product_attention, which picks a flash or memory-efficient kernel where it can."""
    if not dropout and is_short(q, k):
        added = mask.dense
        if added is None and mask.mask.causal:
            added = torch.full((q.shape[2], k.shape[2]), float("-inf"), dtype=q.dtype, device=q.device).triu(1)
        out = short_attention(q, k, v, added, scale)
    else:
        out = F.scaled_dot_product_attention(
            q,
            k,
            v,
            attn_mask=mask.dense,
            dropout_p=dropout,
            is_causal=mask.dense is None and mask.mask.causal,
            scale=scale,
            enable_gqa=q.shape[1] != k.shape[1],
        )
    return out if mask.fully_masked is None else out.masked_fill(mask.fully_masked, 0.0)


def flex(q: Tensor, k: Tensor, v: Tensor, mask: PreparedMask, scale: float, dropout: float = 0.0) -> Tensor:
    """FlexAttention: skips the blocks of the score matrix that the mask empties."""
    bias = mask.bias

    def add_bias(score: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        assert bias is not None
        return score + bias[0 if len(bias) == 1 else b, h, i, j]

    # The kernel must be compiled to be one; inside a compiled model it is already.
    eager = q.is_cuda and not torch.compiler.is_compiling()
    run: Callable[..., Any] = _compiled_flex() if eager else flex_attention  # type: ignore[assignment]
    out: Tensor = run(
        q,
        k,
        v,
        score_mod=None if bias is None else add_bias,
        block_mask=mask.block_mask,
        scale=scale,
        enable_gqa=q.shape[1] != k.shape[1],
    )
    return out


@cache
def _compiled_flex() -> Callable[..., Any]:
    return torch.compile(flex_attention, dynamic=False)


def varlen(q: Tensor, k: Tensor, v: Tensor, sight: PreparedMask, scale: float, dropout: float = 0.0) -> Tensor:
    """Flash attention over documents laid end to end: no work between documents, no mask in memory."""
    from torch.nn.attention.varlen import varlen_attn  # loads the compiler: a second that only this kernel needs

    offsets, mask = sight.offsets, sight.mask
    assert offsets is not None
    rows, heads, queries, width = q.shape
    k = k.repeat_interleave(heads // k.shape[1], dim=1)
    v = v.repeat_interleave(heads // v.shape[1], dim=1)
    left = mask.window or -1
    out = varlen_attn(
        q.transpose(1, 2).reshape(-1, heads, width),  # (B·T, H, D)
        k.transpose(1, 2).reshape(-1, heads, width),
        v.transpose(1, 2).reshape(-1, heads, width),
        offsets.query,
        offsets.key,
        offsets.max_query_length,
        offsets.max_key_length,
        scale=scale,
        window_size=(left, 0 if mask.causal else left),
    )
    assert isinstance(out, Tensor)  # it gives more only when asked for more
    out = out.view(rows, queries, heads, width).transpose(1, 2)
    padding = mask.query.padding
    return out if padding is None else out.masked_fill(padding[:, None, :, None], 0.0)


KERNELS = {"plain": eager, "sdpa": sdpa, "flex": flex, "varlen": varlen}


def split_heads(x: Tensor, num_heads: int) -> Tensor:
    """(B, T, heads · D) → (B, heads, T, D): the head axis becomes a batch axis."""
    return x.view(*x.shape[:2], num_heads, x.shape[-1] // num_heads).transpose(1, 2)


def gather_positions(x: Tensor, selected: Tensor | None) -> Tensor:
    """Vectors (B, T, C) at places `only` of the rows laid end to end, (N,) or (B, Q): (N, C). None: as they are."""
    return x if selected is None else x.flatten(0, 1).index_select(0, selected.flatten())


def select_queries(q: Tensor, selected: Tensor) -> Tensor:
    """Of the queries (B, H, T, D) those at places `only` (B, Q) of the rows laid end to end: (B, H, Q, D)."""
    column = (selected % q.shape[2])[:, None, :, None]
    return q.gather(2, column.expand(-1, q.shape[1], -1, q.shape[3]))


class Attention(nn.Module):
    """What self- and cross-attention share: heads attend, and their answers are mixed by the output projection."""

    def __init__(self, config: StackConfig) -> None:
        super().__init__()
        self.heads, self.kv_heads, self.head_dim = config.heads, config.kv_heads, config.head_dim
        self.scale = config.head_dim**-0.5 if config.score_scale == "sqrt" else 1.0
        self.dropout = config.attention_dropout
        self.out = nn.Linear(self.heads * self.head_dim, config.width, bias=config.bias in ("all", "attention"))
        normed = config.qk_norm == "head"
        self.q_norm = make_norm(config, self.head_dim) if normed else None
        self.k_norm = make_norm(config, self.head_dim) if normed else None

    def attend(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        mask: PreparedMask,
        tap: LayerTap | None,
        prefix: str = "",
        selected: Tensor | None = None,
    ) -> Tensor:
        """Run the kernel, and what the tap asks for beside it; (B, H, T, D) → (B, T, C), or (N, C) at places `only`.

        Where these are as many in each row, (B, Q), nobody else asks; `sight` is then that of these queries.
        """
        if selected is not None and selected.dim() == 2:
            q = select_queries(q, selected)
        if tap and tap.changes(prefix + "scores") | tap.changes(prefix + "pattern"):
            weights = tap(prefix + "pattern", pattern(tap(prefix + "scores", scores(q, k, mask, self.scale))))
            z = weighted_values(weights, v, q.dtype)
        else:
            if tap and tap.wants(prefix + "scores") | tap.wants(prefix + "pattern"):
                self._record_scores(q, k, mask, tap, prefix)
            dropout = self.dropout if self.training else 0.0
            z = KERNELS[mask.kernel](q, k, v, mask, self.scale, dropout)
        if tap:
            z = tap(prefix + "z", z)
        z = z.transpose(1, 2).flatten(2)  # (B, T, C)
        if selected is not None:
            z = gather_positions(z, selected) if selected.dim() == 1 else z.flatten(0, 1)  # (N, C)
        out: Tensor = self.out(z)
        return out

    def _record_scores(self, q: Tensor, k: Tensor, mask: PreparedMask, tap: LayerTap, prefix: str) -> None:
        """Recompute scores and pattern for the heads asked for; the kernel's own answer is not touched."""
        if tap.heads is not None:
            if not all(0 <= head < self.heads for head in tap.heads):
                raise ValueError(f"heads = {tap.heads}: this stack has heads 0 … {self.heads - 1}")
            chosen = torch.tensor(tap.heads, device=q.device)
            q, k = q[:, chosen], k[:, chosen // (self.heads // self.kv_heads)]
            bias = None if mask.bias is None else mask.bias[:, chosen]
            mask = PreparedMask(mask.mask, mask.kernel, bias)
        seen = tap(prefix + "scores", scores(q, k, mask, self.scale))
        if tap.wants(prefix + "pattern"):
            tap(prefix + "pattern", pattern(seen))


class SelfAttention(Attention):
    """Queries, keys and values from the same tokens, by one fused projection."""

    def __init__(self, config: StackConfig) -> None:
        super().__init__(config)
        self.split_sizes = [n * self.head_dim for n in (self.heads, self.kv_heads, self.kv_heads)]
        self.qkv = nn.Linear(config.width, sum(self.split_sizes), bias=config.bias != "none")

    def forward(
        self,
        x: Tensor,
        mask: PreparedMask,
        rotary: Rotary | None = None,
        cache: SelfCache | None = None,
        layer: int = 0,
        tap: LayerTap | None = None,
        selected: Tensor | None = None,
    ) -> Tensor:
        if mask.kernel != "varlen":  # which never looks from one document into another, so not into padding either
            x = (mask.mask.key if cache is None else mask.mask.query).zero_padding(x)
        q, k, v = self.qkv(x).split(self.split_sizes, dim=-1)
        q, k, v = split_heads(q, self.heads), split_heads(k, self.kv_heads), split_heads(v, self.kv_heads)
        if self.q_norm is not None and self.k_norm is not None:
            q, k = self.q_norm(q), self.k_norm(k)
        if rotary is not None:
            q, k = rotary.rotate(q), rotary.rotate(k)
        if tap:
            q, k, v = tap("q", q), tap("k", k), tap("v", v)
        if cache is not None:
            k, v = cache.write(layer, k, v)
        return self.attend(q, k, v, mask, tap, selected=selected)


class CrossAttention(Attention):
    """Queries from the decoder, keys and values from the encoder's output."""

    def __init__(self, config: StackConfig) -> None:
        super().__init__(config)
        bias = config.bias != "none"
        self.q = nn.Linear(config.width, self.heads * self.head_dim, bias=bias)
        self.kv = nn.Linear(config.width, 2 * self.kv_heads * self.head_dim, bias=bias)

    def keys_values(self, memory: Tensor) -> tuple[Tensor, Tensor]:
        """Project the encoder's output (B, S, C) to keys and values (B, KV, S, D)."""
        k, v = self.kv(memory).chunk(2, dim=-1)
        k, v = split_heads(k, self.kv_heads), split_heads(v, self.kv_heads)
        return k if self.k_norm is None else self.k_norm(k), v

    def forward(
        self,
        x: Tensor,
        memory: EncoderMemory | CrossCache,
        mask: PreparedMask,
        layer: int = 0,
        tap: LayerTap | None = None,
    ) -> Tensor:
        k, v = memory.keys_values(layer, self)
        q = split_heads(self.q(x), self.heads)
        if self.q_norm is not None:
            q = self.q_norm(q)
        if tap:
            q, k, v = tap("cross_q", q), tap("cross_k", k), tap("cross_v", v)
        beams = q.shape[0] // k.shape[0]
        if beams == 1:
            return self.attend(q, k, v, mask, tap, "cross_")
        # Beams of one source are more queries against the same keys: (B·n, H, T, D) → (B, H, n·T, D), and back.
        q = q.view(-1, beams, *q.shape[1:]).transpose(1, 2).flatten(2, 3)
        out = self.attend(q, k, v, mask, tap, "cross_")  # (B, n·T, C)
        return out.view(x.shape)
