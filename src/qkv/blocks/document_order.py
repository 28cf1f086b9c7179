"""The order in which a recurrent layer reads a batch: step by step, one token of every document in each step.

A recurrent layer carries a state from token to token. The state must not pass from one packed document to the next, and
padding must not change it. So the layer reads documents, not sequences:

    sequences     a b c d e      documents,        a b c      step order      a d f h   b e g   c
                  f g h · ·      longest first     d e        batch sizes     4         3       1
    (document     1 1 1 2 2                        f g
     ids)         1 1 2 0 0                        h

This is the form of torch's `PackedSequence`, which the fused kernels read. No step computes padding.

B batch, T tokens of a sequence, D documents, L steps (the length of the longest document), N tokens of all documents,
S source tokens, C model width
"""

from typing import NamedTuple

import torch
from torch import Tensor

from qkv.blocks.head import pooled_index
from qkv.blocks.mask import SequenceLayout


class DocumentOrder(NamedTuple):
    """The documents of a batch, longest first, and their tokens in step order."""

    tokens: Tensor  # (N,) the flat index b·T + t of each token
    batch_sizes: Tensor  # (L,) on the CPU: the number of documents that have a token in each step
    rows: Tensor  # (D,) the sequence of each document
    ids: Tensor  # (D,) the document id of each document
    lengths: Tensor  # (D,)

    def gather(self, x: Tensor) -> Tensor:
        """Vectors of a batch (B, T, C) → vectors in step order (N, C)."""
        return x.flatten(0, 1)[self.tokens]

    def scatter(self, data: Tensor, batch_size: int, length: int) -> Tensor:
        """Vectors in step order (N, C) → vectors of a batch (B, T, C), zero at padding."""
        out = data.new_zeros(batch_size * length, data.shape[-1]).index_copy(0, self.tokens, data)
        return out.view(batch_size, length, -1)

    def ranks(self) -> Tensor:
        """Return the number of the document of each token, (N,)."""
        return torch.cat([torch.arange(size) for size in self.batch_sizes.tolist()]).to(self.tokens.device)


def order_documents(layout: SequenceLayout, batch_size: int) -> DocumentOrder:
    """Find the documents of a batch. The tokens of a document keep their order, whatever lies between them."""
    document_ids, length, device = layout.document_ids, layout.positions.shape[1], layout.positions.device
    if document_ids is None:
        rows = torch.arange(batch_size, device=device)
        index = (rows * length + torch.arange(length, device=device)[:, None]).flatten()
        lengths = torch.full_like(rows, length)
        batch_sizes = torch.full((length,), batch_size, device="cpu")
        return DocumentOrder(index, batch_sizes, rows, torch.ones_like(rows), lengths)
    flat = document_ids.flatten().long()
    tokens = flat.nonzero()[:, 0]
    multiple = 1 + flat.max()
    keys, document, lengths = (tokens // length * multiple + flat[tokens]).unique(
        return_inverse=True, return_counts=True
    )
    order = document.argsort(stable=True)  # document after document
    starts = lengths.cumsum(0) - lengths
    step = torch.empty_like(order)
    step[order] = torch.arange(len(order), device=device) - starts[document[order]]
    by_length = lengths.argsort(descending=True, stable=True)
    rank = torch.empty_like(by_length)
    rank[by_length] = torch.arange(len(by_length), device=device)
    index = tokens[(step * len(lengths) + rank[document]).argsort()]
    keys, lengths = keys[by_length], lengths[by_length]
    batch_sizes = step.bincount().cpu()
    return DocumentOrder(index, batch_sizes, keys // multiple, keys % multiple, lengths)


class SourceDocuments(NamedTuple):
    """The source of each target document: the source document with the same document id."""

    keys: Tensor  # (D, S, C)
    values: Tensor  # (D, S, C)
    padding: Tensor  # (D, S) True where there is no source token
    columns: Tensor  # (D, S) the index of each token in its source sequence

    def summaries(self) -> Tensor:
        """Return for each source its forward state at the last token and its backward state at the first, (D, C)."""
        is_token, half = ~self.padding, self.values.shape[-1] // 2
        row = torch.arange(len(is_token), device=is_token.device)
        last, first = (self.values[row, pooled_index(is_token, method)] for method in ("last", "first"))
        summary = torch.cat([last[:, :half], first[:, half:]], dim=1)
        return summary.masked_fill(self.padding.all(1)[:, None], 0.0)


def find_sources(
    order: DocumentOrder, target: SequenceLayout, keys: Tensor, values: Tensor, source: SequenceLayout
) -> SourceDocuments:
    """Find the source of each target document. `keys` and `values` are (sources, S, C).

    There may be several target sequences for each source: the beams of a search, which are consecutive.
    """
    num_sources, length, _ = values.shape
    ids = torch.ones_like(values[..., 0], dtype=torch.long) if source.document_ids is None else source.document_ids
    if target.document_ids is None:  # each target sequence is document 1 of its source
        num_beams = len(order.rows) // num_sources
        columns = torch.arange(length, device=ids.device).expand(len(order.rows), -1)
        padding = ids != 1
        if num_beams > 1:
            keys, values, padding = (one.repeat_interleave(num_beams, dim=0) for one in (keys, values, padding))
        return SourceDocuments(keys, values, padding, columns)
    rows = order.rows // (len(target.document_ids) // num_sources)
    member = ids[rows] == order.ids[:, None]  # (D, S)
    lengths = member.sum(1)
    longest = max(1, int(lengths.max()))
    # The tokens of the document first, in their order
    columns = member.byte().argsort(dim=1, descending=True, stable=True)[:, :longest]
    padding = torch.arange(longest, device=ids.device) >= lengths[:, None]
    return SourceDocuments(keys[rows[:, None], columns], values[rows[:, None], columns], padding, columns)
