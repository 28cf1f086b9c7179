"""Attention: each token compares its query with all keys, and takes a weighted sum of the values.

    Attention(Q, K, V) = softmax(QKᵀ/√D + bias + mask) V          the weights of each query sum to 1

Softcapping (Gemma 2) bounds the scores: cap · tanh(QKᵀ/√D / cap), before the bias and the mask. An attention sink
(gpt-oss) is one more key with a learned score and no value, so that the weights of the others sum to less than 1.

`eager` computes this formula step by step. The faster kernels in `blocks/kernels` give the same result. The stack picks
a kernel when it prepares its masks, once per forward pass.

B batch, T queries, S keys, H query heads, KV key/value heads, D head dim, C model width
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from qkv.blocks.cache import LayerCache, LayerMemory
from qkv.blocks.config import StackConfig
from qkv.blocks.kernels.choose import KERNELS
from qkv.blocks.kernels.prepared import PreparedMask
from qkv.blocks.norm import make_norm
from qkv.blocks.position import Rotary
from qkv.blocks.tap import LayerTap


def scores(q: Tensor, k: Tensor, mask: PreparedMask, scale: float, cap: float = 0.0) -> Tensor:
    """Return QKᵀ · scale + bias, with −∞ where the key is masked: (B, H, T, S), in float32 or float64."""
    dtype = torch.promote_types(q.dtype, torch.float32)
    k = k.repeat_interleave(q.shape[1] // k.shape[1], dim=1)
    out = q.to(dtype) @ k.to(dtype).transpose(-2, -1) * scale
    if cap:
        out = cap * torch.tanh(out / cap)
    if mask.bias is not None:
        out = out + mask.bias
    return out.masked_fill(~mask.mask.dense(), float("-inf"))


def pattern(scores: Tensor, sinks: Tensor | None = None) -> Tensor:
    """Softmax over the keys, and the sink (H,) of each head. A query that may attend to no key gets zeros."""
    if sinks is not None:
        sink = sinks.to(scores.dtype)[:, None, None].expand(*scores.shape[:-1], 1)
        return torch.cat([scores, sink], dim=-1).softmax(dim=-1)[..., :-1]
    fully_masked = (scores == float("-inf")).all(dim=-1, keepdim=True)
    return scores.masked_fill(fully_masked, 0.0).softmax(dim=-1).masked_fill(fully_masked, 0.0)


def weighted_values(pattern: Tensor, v: Tensor, dtype: torch.dtype) -> Tensor:
    """Return the weighted sum of values, (B, H, T, D)."""
    v = v.repeat_interleave(pattern.shape[1] // v.shape[1], dim=1)
    return (pattern @ v.to(pattern.dtype)).to(dtype)


def eager(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: PreparedMask,
    scale: float,
    dropout: float = 0.0,
    cap: float = 0.0,
    sinks: Tensor | None = None,
) -> Tensor:
    """The reference implementation. It fuses nothing, and its memory is quadratic in the sequence length."""
    return weighted_values(F.dropout(pattern(scores(q, k, mask, scale, cap), sinks), dropout), v, q.dtype)


def split_heads(x: Tensor, num_heads: int) -> Tensor:
    """(B, T, H·D) → (B, H, T, D). Heads are then independent, like the sequences of a batch."""
    return x.view(*x.shape[:2], num_heads, x.shape[-1] // num_heads).transpose(1, 2)


class Attention(nn.Module):
    """The common part of self- and cross-attention: attention in each head, then the output projection."""

    def __init__(self, config: StackConfig) -> None:
        super().__init__()
        self.heads, self.kv_heads, self.head_dim = config.heads, config.kv_heads, config.head_dim
        self.scale = config.head_dim**-0.5 if config.score_scale == "sqrt" else 1.0
        self.score_cap, self.dropout = config.score_cap, config.attention_dropout
        self.out = nn.Linear(self.heads * self.head_dim, config.width, bias=config.bias in ("all", "attention"))
        normed = config.qk_norm == "head"
        self.q_norm = make_norm(config, self.head_dim) if normed else None
        self.k_norm = make_norm(config, self.head_dim) if normed else None
        self.sinks = nn.Parameter(torch.zeros(self.heads)) if config.attention_sinks == "learned" else None

    def init_weights(self, config: StackConfig) -> None:
        """Set the sinks to 0: at first, they are like one more key with an average score."""
        if self.sinks is not None:
            nn.init.zeros_(self.sinks)

    def attend(
        self, q: Tensor, k: Tensor, v: Tensor, mask: PreparedMask, tap: LayerTap | None, prefix: str = ""
    ) -> Tensor:
        """q (B, H, T, D), k and v (B, KV, S, D) → (B, T, C).

        In the last block the result is (N, C) if only N positions are needed (see kernels/selection.py).
        """
        q = mask.select_queries(q)
        if tap and tap.changes(prefix + "scores") | tap.changes(prefix + "pattern"):
            changed = tap(prefix + "scores", scores(q, k, mask, self.scale, self.score_cap))
            weights = tap(prefix + "pattern", pattern(changed, self.sinks))
            z = weighted_values(weights, v, q.dtype)
        else:
            if tap and tap.matches(prefix + "scores") | tap.matches(prefix + "pattern"):
                self._record_scores(q, k, mask, tap, prefix)
            dropout = self.dropout if self.training else 0.0
            if mask.kernel == "eager" or self.score_cap or self.sinks is not None:  # no fast kernel has either
                z = eager(q, k, v, mask, self.scale, dropout, self.score_cap, self.sinks)
            else:
                z = KERNELS[mask.kernel](q, k, v, mask, self.scale, dropout)
        if tap:
            z = tap(prefix + "z", z)
        out: Tensor = self.out(mask.select_output(z.transpose(1, 2).flatten(2)))  # (B, T, H·D) → (B, T, C)
        return out

    def _record_scores(self, q: Tensor, k: Tensor, mask: PreparedMask, tap: LayerTap, prefix: str) -> None:
        """Compute scores and pattern for the heads that the tap records. The kernel's output is not affected."""
        sinks: Tensor | None = self.sinks
        if tap.heads is not None:
            if not all(0 <= head < self.heads for head in tap.heads):
                raise ValueError(f"heads = {tap.heads}: this stack has heads 0 … {self.heads - 1}")
            chosen = torch.tensor(tap.heads, device=q.device)
            q, k = q[:, chosen], k[:, chosen // (self.heads // self.kv_heads)]
            bias = None if mask.bias is None else mask.bias[:, chosen]
            sinks = None if sinks is None else sinks[chosen]
            mask = PreparedMask(mask.mask, mask.kernel, bias)
        recorded = tap(prefix + "scores", scores(q, k, mask, self.scale, self.score_cap))
        if tap.matches(prefix + "pattern"):
            tap(prefix + "pattern", pattern(recorded, sinks))


class SelfAttention(Attention):
    """Queries, keys and values come from the same tokens. One fused matrix projects all three."""

    def __init__(self, config: StackConfig) -> None:
        super().__init__(config)
        self.split_sizes = [n * self.head_dim for n in (self.heads, self.kv_heads, self.kv_heads)]
        self.qkv = nn.Linear(config.width, sum(self.split_sizes), bias=config.bias != "none")
        # The fraction of the values of layer 0; a vector, because FSDP shards no scalars
        self.value_mix = nn.Parameter(torch.full((1,), 0.5)) if config.value_residual == "first" else None

    def init_weights(self, config: StackConfig) -> None:
        """Mix the values of both layers equally at first."""
        super().init_weights(config)
        if self.value_mix is not None:
            nn.init.constant_(self.value_mix, 0.5)

    def forward(
        self,
        x: Tensor,
        mask: PreparedMask,
        rotary: Rotary | None = None,
        cache: LayerCache | None = None,
        tap: LayerTap | None = None,
        shared: dict[str, Tensor] | None = None,
    ) -> Tensor:
        """x (B, T, C) → (B, T, C). If there is a cache, the new keys and values are written to it.

        `shared` is what the layers of one forward pass share, if the config has value residuals.
        """
        if mask.kernel != "varlen":  # varlen computes no scores between padding and other tokens
            x = (mask.mask.key if cache is None else mask.mask.query).zero_padding(x)
        q, k, v = self.qkv(x).split(self.split_sizes, dim=-1)
        q, k, v = split_heads(q, self.heads), split_heads(k, self.kv_heads), split_heads(v, self.kv_heads)
        if self.q_norm is not None and self.k_norm is not None:
            q, k = self.q_norm(q), self.k_norm(k)
        if rotary is not None:
            q, k = rotary.rotate(q), rotary.rotate(k)
        if self.value_mix is not None and shared is not None:
            v = v + self.value_mix.to(v.dtype) * (shared.setdefault("values", v) - v)
        if tap:
            q, k, v = tap("q", q), tap("k", k), tap("v", v)
        if cache is not None:
            k, v = cache.write(k, v)
        return self.attend(q, k, v, mask, tap)


class CrossAttention(Attention):
    """Queries come from the decoder; keys and values come from the encoder's output."""

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

    def forward(self, x: Tensor, source: LayerMemory, tap: LayerTap | None = None) -> Tensor:
        """x (B, T, C) → (B, T, C). The batch may contain several beams for each source."""
        k, v = source.keys_values(self.keys_values)
        q = split_heads(self.q(x), self.heads)
        if self.q_norm is not None:
            q = self.q_norm(q)
        if tap:
            q, k, v = tap("cross_q", q), tap("cross_k", k), tap("cross_v", v)
        num_beams = q.shape[0] // k.shape[0]
        if num_beams == 1:
            return self.attend(q, k, v, source.mask, tap, "cross_")
        # The n beams of a source become extra queries on the same keys: (B·n, H, T, D) → (B, H, n·T, D).
        q = q.view(-1, num_beams, *q.shape[1:]).transpose(1, 2).flatten(2, 3)
        out = self.attend(q, k, v, source.mask, tap, "cross_")  # (B, n·T, C)
        return out.view(x.shape)


def make_attention(config: StackConfig, *, cross: bool = False) -> Attention:
    """Return self-attention or cross-attention."""
    return CrossAttention(config) if cross else SelfAttention(config)
