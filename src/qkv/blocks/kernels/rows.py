"""Attention on a CPU with batched matrix products, a block of queries at a time.

Torch's kernel for a CPU computes all scores, even of masked keys, and its products use a quarter of the processor's
bfloat16 rate. Here each block of 128 queries is multiplied only by a range of keys: from the first to the last key that
any of its queries may attend to. So the future and most tokens of other documents are skipped. A plan lists these
ranges once per forward pass. The backward pass reads the patterns and the contiguous copies of q, k and v that the
forward pass saved.

In bfloat16, the scores and the patterns are rounded to bfloat16; the softmax between them computes in float32.

B batch, T queries, S keys, H heads, D head dim
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from qkv.blocks.dropout import dropout_multiplier, is_transformed

BLOCK_ROWS = 128
"""So many queries of a sequence are multiplied by their keys at once."""
BLOCK_SCORES = 2**18
"""Short sequences share a block: up to this number of scores, which stay in the processor's cache."""
MAX_KEYS = 1024
"""With more keys, torch's kernel, which never holds all scores of a query, is faster."""
MAX_PATTERNS = 2**24
"""At most this number of weights is saved for the backward pass; torch's kernel saves none."""
MAX_SHORT = 64
"""Sequences of up to this length are supported if there are at least `MIN_SHORT` pairs of sequence and head."""
MIN_SHORT = 64
MIN_VECTORISED_KEYS = 16
"""Torch's softmax is not vectorised with fewer keys than this."""
DTYPES = (torch.bfloat16, torch.float32, torch.float64)


class RowBlock(NamedTuple):
    """Some queries of each sequence in a group, and the range of keys that they need."""

    sequences: slice
    queries: slice
    keys: slice


class RowPlan(NamedTuple):
    """The blocks of one mask. All sequences of a group have the same blocks."""

    blocks: list[RowBlock]
    causal: bool  # a query attends to no key of a higher index; there is no other mask


def supports_rows(q: Tensor, k: Tensor, additive_mask: Tensor | None) -> bool:
    """Whether `row_attention` supports q (B, H, T, D) and k (B, H, S, D), and is faster than torch's kernel."""
    if q.device.type != "cpu" or torch.compiler.is_compiling():  # a compiler would specialise on this condition
        return False
    queries, keys = q.shape[2], k.shape[2]
    alike = q.shape[:2] == k.shape[:2] and q.dtype == k.dtype and q.dtype in DTYPES
    if not alike or not 0 < keys <= MAX_KEYS:
        return False
    if torch.is_grad_enabled() and q.shape[0] * q.shape[1] * queries * keys > MAX_PATTERNS:
        return False
    if max(queries, keys) <= MAX_SHORT:
        return q.shape[0] * q.shape[1] >= MIN_SHORT
    return queries > MAX_SHORT and not (additive_mask is not None and additive_mask.requires_grad)


def plan_rows(q: Tensor, k: Tensor, additive_mask: Tensor | None, fully_masked: Tensor | None, causal: bool) -> RowPlan:
    """List the blocks for q (B, H, T, D), k (B, H, S, D) and a mask: `causal`, or `additive_mask` (B or 1, …, T, S).

    The queries that `fully_masked` (B, 1, T, 1) names need no key; their output is not used.
    """
    sequences, heads, queries, keys = q.shape[0], q.shape[1], q.shape[2], k.shape[2]
    starts = range(0, queries, BLOCK_ROWS)
    group = max(1, BLOCK_SCORES // (heads * min(queries, BLOCK_ROWS) * keys))
    groups = [slice(first, min(first + group, sequences)) for first in range(0, sequences, group)]
    if additive_mask is None or len(starts) == 1:
        ranges = [[(0, min(start + BLOCK_ROWS, keys) if causal else keys) for start in starts]] * len(groups)
    else:
        ranges = _key_ranges(additive_mask, fully_masked, groups)
    blocks = [
        RowBlock(group, slice(start, min(start + BLOCK_ROWS, queries)), slice(first, max(first + 1, stop)))
        for group, of_group in zip(groups, ranges, strict=True)
        for start, (first, stop) in zip(starts, of_group, strict=True)
    ]
    return RowPlan(blocks, causal)


def _key_ranges(additive_mask: Tensor, fully_masked: Tensor | None, groups: list[slice]) -> list[list[tuple[int, int]]]:
    """Return the first key and the end of the keys that each block of queries needs, for each group of sequences."""
    needed = (additive_mask.detach() > float("-inf")).flatten(1, -3).any(dim=1)  # (B or 1, T, S)
    if fully_masked is not None:
        needed = needed & ~fully_masked[:, 0]
    found = []
    for group in groups:
        of_group = needed if len(needed) == 1 else needed[group]
        by_block = [rows.any(dim=(0, 1)) for rows in of_group.split(BLOCK_ROWS, dim=1)]  # (S,) each
        by_block = [torch.arange(len(keys))[keys] for keys in by_block]
        found.append([(int(keys[0]), int(keys[-1]) + 1) if len(keys) else (0, 1) for keys in by_block])
    return found


def row_attention(
    q: Tensor, k: Tensor, v: Tensor, additive_mask: Tensor | None, scale: float, plan: RowPlan, dropout: float = 0.0
) -> Tensor:
    """Return softmax(QKᵀ·scale + additive_mask) V. The mask (…, T, S) is 0 or −∞, plus a bias if there is one."""
    if is_transformed() or (additive_mask is not None and additive_mask.requires_grad):
        # Autograd differentiates the formula.
        if plan.causal:
            additive_mask = _future(q, slice(0, q.shape[2]), slice(0, k.shape[2]))
        scores = (q * scale) @ k.transpose(-2, -1)
        pattern = (scores if additive_mask is None else scores + additive_mask).softmax(dim=-1)
        return F.dropout(pattern, dropout) @ v
    saves = torch.is_grad_enabled() and (q.requires_grad or k.requires_grad or v.requires_grad)
    out: Tensor = RowAttention.apply(q, k, v, additive_mask, scale, plan, dropout, saves)  # type: ignore[no-untyped-call]
    return out


class RowAttention(torch.autograd.Function):
    """`row_attention`, a block at a time, with its backward pass written out."""

    @staticmethod
    def forward(
        ctx: Any,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        additive_mask: Tensor | None,
        scale: float,
        plan: RowPlan,
        dropout: float,
        saves: bool,
    ) -> Tensor:
        """q (B, H, T, D), k and v (B, H, S, D) → (B, H, T, D). It saves patterns only for a backward pass."""
        batch, heads, queries, head_dim = q.shape
        scaled_q = torch.mul(q, scale, out=q.new_empty(q.shape))  # scaled and contiguous
        keys, values = k.contiguous(), v.contiguous()
        out = q.new_empty(batch, queries, heads, head_dim).transpose(1, 2)  # heads are side by side, as they are read
        patterns: list[Tensor] = []
        multipliers: list[Tensor] = []
        with torch.autocast("cpu", enabled=False):  # the products have the dtype of q already
            for block in plan.blocks:
                scores = torch.bmm(_heads(scaled_q, block, "queries"), _heads(keys, block, "keys").transpose(1, 2))
                pattern = _pattern(scores, heads, additive_mask, block, plan.causal)
                multiplier = dropout_multiplier(pattern, dropout) if dropout else None
                weights = pattern if multiplier is None else pattern * multiplier
                z = torch.bmm(weights, _heads(values, block, "keys"))
                out[block.sequences, :, block.queries] = z.view(-1, heads, *z.shape[1:])
                if saves:
                    patterns.append(pattern)
                    multipliers += [] if multiplier is None else [multiplier]
        ctx.save_for_backward(scaled_q, keys, values, *patterns, *multipliers)
        ctx.scale, ctx.plan, ctx.has_dropout = scale, plan, bool(dropout)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_out: Tensor) -> tuple[Any, ...]:
        """Return the gradients of q, k and v."""
        scaled_q, keys, values, *saved = ctx.saved_tensors
        blocks, heads = ctx.plan.blocks, scaled_q.shape[1]
        multipliers = saved[len(blocks) :] if ctx.has_dropout else [None] * len(blocks)
        grad_q, grad_k, grad_v = torch.empty_like(scaled_q), torch.zeros_like(keys), torch.zeros_like(values)
        for block, pattern, multiplier in zip(blocks, saved[: len(blocks)], multipliers, strict=True):
            grad_z = grad_out[block.sequences, :, block.queries].reshape(-1, pattern.shape[1], grad_out.shape[-1])
            grad_pattern = torch.bmm(grad_z, _heads(values, block, "keys").transpose(1, 2))
            weights = pattern
            if multiplier is not None:
                weights = pattern * multiplier
                grad_pattern.mul_(multiplier)
            grad_scores = torch._softmax_backward_data(grad_pattern, pattern, -1, pattern.dtype)
            _add_product(grad_v, block, weights, grad_z)
            _add_product(grad_k, block, grad_scores, _heads(scaled_q, block, "queries"))
            part = torch.bmm(grad_scores, _heads(keys, block, "keys"))
            grad_q[block.sequences, :, block.queries] = part.view(-1, heads, *part.shape[1:])
        return grad_q.mul_(ctx.scale), grad_k, grad_v, None, None, None, None, None


def _heads(x: Tensor, block: RowBlock, side: str) -> Tensor:
    """The vectors of a block in contiguous x (B, H, n, D), heads side by side: (sequences · H, n of the block, D)."""
    return x[block.sequences].flatten(0, 1)[:, getattr(block, side)]


def _add_product(total: Tensor, block: RowBlock, weights: Tensor, vectors: Tensor) -> None:
    """Add weightsᵀ @ vectors to the block's keys in `total` (B, H, S, D)."""
    part = _heads(total, block, "keys")
    part.baddbmm_(weights.transpose(1, 2), vectors)


def _pattern(scores: Tensor, heads: int, additive_mask: Tensor | None, block: RowBlock, causal: bool) -> Tensor:
    """Mask scores (sequences · H, queries, keys) in place and return their softmax."""
    if additive_mask is not None:
        added = additive_mask[..., block.queries, block.keys]
        if added.dim() == 4 and len(added) > 1:
            added = added[block.sequences]
        scores.view(-1, heads, *scores.shape[1:]).add_(added)
    elif causal:
        diagonal = block.queries.start
        past = min(diagonal, block.keys.stop)  # every query of the block may attend to the keys before the first query
        scores[..., past:] += _future(scores, block.queries, slice(past, block.keys.stop))
    return softmax_in_place(scores) if scores.shape[-1] < MIN_VECTORISED_KEYS else scores.softmax(dim=-1)


def _future(like: Tensor, queries: slice, keys: slice) -> Tensor:
    """−∞ where the index of a key is greater than the index of the query, else 0: (queries, keys)."""
    shape = (queries.stop - queries.start, keys.stop - keys.start)
    return torch.full(shape, float("-inf"), dtype=like.dtype).triu(1 + queries.start - keys.start)


def softmax_in_place(scores: Tensor) -> Tensor:
    """Softmax over the last axis. Each row needs at least one finite score."""
    scores.sub_(scores.amax(dim=-1, keepdim=True)).exp_()
    return scores.div_(scores.sum(dim=-1, keepdim=True))
