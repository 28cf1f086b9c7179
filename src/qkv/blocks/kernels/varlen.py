"""Flash attention for packed documents of different lengths. It computes no scores between documents and needs no mask.

B batch, T queries, S keys, H heads, D head dim
"""

import torch
from torch import Tensor

from qkv.blocks.kernels.prepared import DocumentOffsets, KernelHints, PreparedMask
from qkv.blocks.mask import Mask


def make_offsets(mask: Mask, batch_size: int, query_hints: KernelHints, key_hints: KernelHints) -> DocumentOffsets:
    """Return where each document starts. Document ids must not decrease along a sequence; padding comes last.

    Packed batches meet this condition. Padding is treated as additional documents, whose outputs are set to 0.
    """
    queries, keys = mask.query.positions.shape[1], mask.key.positions.shape[1]
    query_documents, key_documents = mask.document_id_pair()
    max_documents = max(query_hints.max_documents, key_hints.max_documents)
    if not max_documents:  # There is no hint: read the tensors, which synchronises with the device.
        max_documents = int(torch.maximum(query_documents.max(), key_documents.max()))
    # No document may be longer than the maximum length given to the kernel, so long padding is split.
    max_query_length = min(query_hints.max_document_length or queries, queries)
    max_key_length = min(key_hints.max_document_length or keys, keys)
    num_padding_documents = max(-(-queries // max_query_length), -(-keys // max_key_length))
    return DocumentOffsets(
        _cumulative_lengths(
            query_documents.expand(batch_size, -1), max_documents, max_query_length, num_padding_documents
        ),
        _cumulative_lengths(key_documents.expand(batch_size, -1), max_documents, max_key_length, num_padding_documents),
        max_query_length,
        max_key_length,
    )


def _cumulative_lengths(
    document_ids: Tensor, max_documents: int, max_length: int, num_padding_documents: int
) -> Tensor:
    """Document ids (B, T) → where each document starts in the flattened batch, (B · documents + 1,).

    Every sequence gets max_documents + num_padding_documents entries. Entries that a sequence does not need are empty.
    """
    padding = document_ids == 0
    # The index of the padding document that a padding token belongs to.
    padding_index = (padding.cumsum(1) - 1) // max_length if num_padding_documents > 1 else 0
    number = torch.where(padding, max_documents + padding_index, document_ids - 1).long()  # (B, T), padding last
    ordered = (number[:, 1:] >= number[:, :-1]).all()  # checked on the device, without synchronising
    torch._assert_async(ordered, "variable-length kernels need document ids that increase, with padding last")
    lengths = torch.zeros(
        len(document_ids), max_documents + num_padding_documents, dtype=torch.int32, device=document_ids.device
    )
    lengths.scatter_add_(1, number, torch.ones_like(number, dtype=torch.int32))
    return torch.nn.functional.pad(lengths.flatten().cumsum(0, dtype=torch.int32), (1, 0))


def varlen(q: Tensor, k: Tensor, v: Tensor, prepared: PreparedMask, scale: float, dropout: float = 0.0) -> Tensor:
    """q (B, H, T, D), k and v (B, KV, S, D) → (B, H, T, D).

    `dropout` is always 0 here: with dropout, `prepare_mask` chooses SDPA.
    """
    from torch.nn.attention.varlen import varlen_attn  # This import loads the compiler, which takes a second.

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
    assert isinstance(out, Tensor)  # it is a tuple only if auxiliary outputs are requested
    out = out.view(batch, queries, heads, head_dim).transpose(1, 2)
    padding = mask.query.padding
    return out if padding is None else out.masked_fill(padding[:, None, :, None], 0.0)
