"""Attention by torch's `scaled_dot_product_attention`, which picks a flash or memory-efficient kernel if it can.

B batch, T queries, S keys, H heads, D head dim
"""

import torch
from torch import Tensor
from torch.nn import functional as F

from qkv.blocks.kernels.prepared import PreparedMask
from qkv.blocks.kernels.short import is_short, short_attention


def prepare_dense(prepared: PreparedMask, x: Tensor) -> None:
    """Set `dense` and `fully_masked`. A query that may attend to nothing attends to everything, and `sdpa` discards
    the result: a softmax over no keys would be NaN.
    """
    mask, bias = prepared.mask, prepared.bias
    allowed = mask.dense()
    if mask.query.document_ids is not None or mask.key.document_ids is not None:
        prepared.fully_masked = ~allowed.any(dim=-1, keepdim=True)
        allowed = allowed | prepared.fully_masked
    if bias is None and x.device.type != "cpu":
        prepared.dense = allowed
    else:  # on a CPU an additive mask in any case, or torch would convert the bool mask in every layer
        prepared.dense = torch.where(allowed, 0.0 if bias is None else bias, float("-inf")).to(x.dtype)


def sdpa(q: Tensor, k: Tensor, v: Tensor, prepared: PreparedMask, scale: float, dropout: float = 0.0) -> Tensor:
    """(B, H, T, D), (B, KV, S, D) twice → (B, H, T, D)."""
    if not dropout and is_short(q, k):
        additive_mask = prepared.dense
        if additive_mask is None and prepared.mask.causal:
            shape = (q.shape[2], k.shape[2])
            additive_mask = torch.full(shape, float("-inf"), dtype=q.dtype, device=q.device).triu(1)
        out = short_attention(q, k, v, additive_mask, scale)
    else:
        out = F.scaled_dot_product_attention(
            q,
            k,
            v,
            attn_mask=prepared.dense,
            dropout_p=dropout,
            is_causal=prepared.dense is None and prepared.mask.causal,
            scale=scale,
            enable_gqa=q.shape[1] != k.shape[1],
        )
    return out if prepared.fully_masked is None else out.masked_fill(prepared.fully_masked, 0.0)
