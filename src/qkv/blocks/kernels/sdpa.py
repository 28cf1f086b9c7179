"""Attention with torch's `scaled_dot_product_attention`, which uses a flash or memory-efficient kernel if possible.

B batch, T queries, S keys, H heads, D head dim
"""

import torch
from torch import Tensor
from torch.nn import functional as F

from qkv.blocks.kernels.prepared import PreparedMask
from qkv.blocks.kernels.rows import plan_rows, row_attention, supports_rows


def prepare_attn_mask(prepared: PreparedMask, x: Tensor) -> None:
    """Set `attn_mask` and `fully_masked`.

    A softmax over no keys would be NaN. So a query with no allowed key attends to all keys here, and `sdpa` sets its
    output to 0.
    """
    mask, bias = prepared.mask, prepared.bias
    allowed = mask.dense()
    if mask.query.document_ids is not None or mask.key.document_ids is not None:
        prepared.fully_masked = ~allowed.any(dim=-1, keepdim=True)
        allowed = allowed | prepared.fully_masked
    if bias is None and x.device.type != "cpu":
        prepared.attn_mask = allowed
    else:  # On a CPU the mask is always additive: torch would otherwise convert the bool mask in every layer.
        prepared.attn_mask = torch.where(allowed, 0.0 if bias is None else bias, float("-inf")).to(x.dtype)


def sdpa(q: Tensor, k: Tensor, v: Tensor, prepared: PreparedMask, scale: float, dropout: float = 0.0) -> Tensor:
    """q (B, H, T, D), k and v (B, KV, S, D) → (B, H, T, D)."""
    causal = prepared.attn_mask is None and prepared.mask.causal
    if supports_rows(q, k, prepared.attn_mask):
        if prepared.row_plan is None:
            prepared.row_plan = plan_rows(q, k, prepared.attn_mask, prepared.fully_masked, causal)
        out = row_attention(q, k, v, prepared.attn_mask, scale, prepared.row_plan, dropout)
    else:
        out = F.scaled_dot_product_attention(
            q,
            k,
            v,
            attn_mask=prepared.attn_mask,
            dropout_p=dropout,
            is_causal=causal,
            scale=scale,
            enable_gqa=q.shape[1] != k.shape[1],
        )
    return out if prepared.fully_masked is None else out.masked_fill(prepared.fully_masked, 0.0)
