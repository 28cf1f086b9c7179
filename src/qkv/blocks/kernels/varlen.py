"""Flash attention over documents of different lengths: no work between documents, and no mask in memory.

B batch, T queries, S keys, H heads, D head dim, N documents
"""

import torch
from torch import Tensor

from qkv.blocks.kernels.prepared import DocumentOffsets, KernelHints, PreparedMask
from qkv.blocks.mask import Mask


def make_offsets(mask: Mask, batch_size: int, query_hints: KernelHints, key_hints: KernelHints) -> DocumentOffsets:
    """Where documents start. Document ids must increase along each sequence with padding last, as packing makes them.

    Padding counts as further documents; their outputs are discarded.
    """
    queries, keys = mask.query.positions.shape[1], mask.key.positions.shape[1]
    query_documents, key_documents = mask.document_ids()
    max_documents = max(query_hints.max_documents, key_hints.max_documents)
    if not max_documents:  # without a hint, read the tensors, which synchronises with the device
        max_documents = int(torch.maximum(query_documents.max(), key_documents.max()))
    # No document may exceed the maximum length given to the kernel, so padding is split into several.
    max_query_length = min(query_hints.max_document_length or queries, queries)
    max_key_length = min(key_hints.max_document_length or keys, keys)
    paddings = max(-(-queries // max_query_length), -(-keys // max_key_length))
    return DocumentOffsets(
        _cumulative_lengths(query_documents.expand(batch_size, -1), max_documents, max_query_length, paddings),
        _cumulative_lengths(key_documents.expand(batch_size, -1), max_documents, max_key_length, paddings),
        max_query_length,
        max_key_length,
    )


def _cumulative_lengths(document_ids: Tensor, max_documents: int, max_length: int, paddings: int) -> Tensor:
    """(B, T) → (B · (max_documents + paddings) + 1,), with empty documents in sequences that have fewer."""
    padding = document_ids == 0
    which = (padding.cumsum(1) - 1) // max_length if paddings > 1 else 0  # which of the documents of padding
    number = torch.where(padding, max_documents + which, document_ids - 1).long()  # (B, T), padding last
    ordered = (number[:, 1:] >= number[:, :-1]).all()  # checked on the device, without synchronising
    torch._assert_async(ordered, "variable-length kernels need document ids that increase, with padding last")
    lengths = torch.zeros(len(document_ids), max_documents + paddings, dtype=torch.int32, device=document_ids.device)
    lengths.scatter_add_(1, number, torch.ones_like(number, dtype=torch.int32))
    return torch.nn.functional.pad(lengths.flatten().cumsum(0, dtype=torch.int32), (1, 0))


def varlen(q: Tensor, k: Tensor, v: Tensor, prepared: PreparedMask, scale: float, dropout: float = 0.0) -> Tensor:
    """(B, H, T, D), (B, KV, S, D) twice → (B, H, T, D). There is no dropout: `choose` never picks it with one."""
    from torch.nn.attention.varlen import varlen_attn  # loads the compiler, which takes a second

    offsets, mask = prepared.offsets, prepared.mask
    assert offsets is not None
    batch, heads, queries, head_dim = q.shape
    k = k.repeat_interleave(heads // k.shape[1], dim=1)
    v = v.repeat_interleave(heads // v.shape[1], dim=1)
    left = mask.window or -1
    out = varlen_attn(
        q.transpose(1, 2).reshape(-1, heads, head_dim),  # (B·T, H, D)
        k.transpose(1, 2).reshape(-1, heads, head_dim),
        v.transpose(1, 2).reshape(-1, heads, head_dim),
        offsets.query,
        offsets.key,
        offsets.max_query_length,
        offsets.max_key_length,
        scale=scale,
        window_size=(left, 0 if mask.causal else left),
    )
    assert isinstance(out, Tensor)  # a tuple only if more is asked for
    out = out.view(batch, queries, heads, head_dim).transpose(1, 2)
    padding = mask.query.padding
    return out if padding is None else out.masked_fill(padding[:, None, :, None], 0.0)
