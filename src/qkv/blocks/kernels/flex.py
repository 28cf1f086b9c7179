"""Attention with torch's FlexAttention, which skips the blocks of the score matrix that are fully masked.

B batch, T queries, S keys, H heads, D head dim
"""

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask, create_block_mask, flex_attention

from qkv.blocks.kernels.prepared import PreparedMask
from qkv.blocks.mask import Mask


def make_block_mask(mask: Mask) -> BlockMask:
    """Find the blocks of the score matrix in which the mask allows at least one pair of query and key."""
    query_documents, key_documents = mask.document_id_pair()
    query_positions, key_positions = mask.query.positions, mask.key.positions
    batch = max(len(t) for t in (query_documents, key_documents, query_positions, key_positions))
    query_documents, query_positions = query_documents.expand(batch, -1), query_positions.expand(batch, -1)
    key_documents, key_positions = key_documents.expand(batch, -1), key_positions.expand(batch, -1)

    def allows(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        row = b if batch > 1 else 0  # row 0 of the tensors is the layout of all sequences
        return mask.allows(
            query_documents[row, q], key_documents[row, k], query_positions[row, q], key_positions[row, k]
        )

    queries, keys = query_documents.shape[1], key_documents.shape[1]
    return create_block_mask(allows, batch, None, queries, keys, device=query_documents.device.type)


def flex(q: Tensor, k: Tensor, v: Tensor, prepared: PreparedMask, scale: float, dropout: float = 0.0) -> Tensor:
    """q (B, H, T, D), k and v (B, KV, S, D) → (B, H, T, D).

    `dropout` is always 0 here: with dropout, `prepare_mask` chooses SDPA.
    """
    bias = prepared.bias

    def add_bias(score: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        assert bias is not None
        return score + bias[0 if len(bias) == 1 else b, h, i, j]

    # flex_attention is fused only if it is compiled; inside a compiled model, it already is.
    uncompiled = q.is_cuda and not torch.compiler.is_compiling()
    run: Callable[..., Any] = _compiled_flex() if uncompiled else flex_attention  # type: ignore[assignment]
    out: Tensor = run(
        q,
        k,
        v,
        score_mod=None if bias is None else add_bias,
        block_mask=prepared.block_mask,
        scale=scale,
        enable_gqa=q.shape[1] != k.shape[1],
    )
    return out


@cache
def _compiled_flex() -> Callable[..., Any]:
    return torch.compile(flex_attention, dynamic=False)
