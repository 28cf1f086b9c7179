"""Compute the last block only at the positions whose outputs are needed.

A masked language model is trained on 15 % of its positions, a classifier reads one token, and generation needs only
the last logits of a prompt. The layers before the last must compute every position, because all of them are keys of the
next layer. In the last block, everything after self-attention runs for the selected positions only. If each sequence
has the same small number of selected positions, (B, Q), self-attention also runs for these queries only.

B batch, T positions, Q selected in each sequence, N selected in all, C model width
"""

from collections.abc import Callable
from dataclasses import replace

from torch import Tensor

from qkv.blocks.config import AttentionKernel
from qkv.blocks.kernels.choose import prepare_mask
from qkv.blocks.kernels.prepared import PreparedMask, Selection
from qkv.blocks.mask import Mask, SequenceLayout

MIN_QUERY_REDUCTION = 4
"""If the selected queries are at most 1/4 of the sequence, attention runs for them alone; otherwise for all queries,
because the additional mask would cost more than it saves."""


def gather_positions(x: Tensor, indices: Tensor | None) -> Tensor:
    """Return the vectors (N, C) of x (B, T, C) at flat indices b·T + t, (N,) or (B, Q). With None, return x itself."""
    return x if indices is None else x.flatten(0, 1).index_select(0, indices.flatten())


def restrict_mask(
    prepared: PreparedMask,
    x: Tensor,
    selected: Tensor,
    *,
    score_bias: Callable[[Tensor, SequenceLayout, SequenceLayout], Tensor | None],
    dropout: float,
) -> PreparedMask:
    """Return the mask of the last block: `prepared`, restricted to the `selected` flat indices, (N,) or (B, Q)."""
    mask, length = prepared.mask, x.shape[1]
    if selected.dim() == 1 or MIN_QUERY_REDUCTION * selected.shape[1] > length:
        return replace(prepared, selection=Selection(selected.flatten()))
    queries = _gather_layout(mask.query, selected % length)
    bias = score_bias(x, queries, mask.key)
    # varlen assumes that queries have consecutive positions, but there are gaps between the selected ones. The dense
    # mask of a few queries is small, so flex would not be faster.
    kernel: AttentionKernel = "eager" if prepared.kernel == "eager" else "sdpa"
    few = prepare_mask(Mask(queries, mask.key, mask.causal, mask.window), x, kernel=kernel, bias=bias, dropout=dropout)
    return replace(few, selection=Selection(selected))


def _gather_layout(layout: SequenceLayout, indices: Tensor) -> SequenceLayout:
    """Return the layout of the tokens at `indices` (B, Q), which count from the start of each sequence."""
    document_ids = None if layout.document_ids is None else layout.document_ids.gather(1, indices)
    return SequenceLayout(document_ids, layout.positions.expand(len(indices), -1).gather(1, indices))
