"""The mask: one rule decides which tokens attend to which.

Every token has a document id (0 is padding) and a position. Query i may attend to key j if and only if

    their document ids are equal and not 0,
    and, with a causal mask, the position of j is at most the position of i,
    and, with a sliding window w, their positions are at most w apart.

This covers padding, the causal mask, packed documents, cross-attention (a source and its target have the same document
id), cached decoding (empty slots have document id 0) and the sliding window. A masked score is −∞ before the softmax. A
query that may attend to no key gets zeros. Each kernel in `blocks/kernels` has its own form of this rule.

B batch, T queries, S keys, C model width
"""

from typing import NamedTuple

import torch
from torch import Tensor


class SequenceLayout(NamedTuple):
    """The document id and the position of each token."""

    document_ids: Tensor | None  # (B, T) int, 0 is padding; None: each sequence is one document without padding
    positions: Tensor  # (B, T) int, or (1, T) if they are the same in all sequences

    @property
    def padding(self) -> Tensor | None:
        """(B, T), True at padding; None if there is no padding."""
        return None if self.document_ids is None else self.document_ids == 0

    def zero_padding(self, x: Tensor) -> Tensor:
        """Set x (B, T, C) to zero at padding. Padding is masked, but a NaN there times a weight of 0 would be NaN."""
        padding = self.padding
        return x if padding is None else x.masked_fill(padding[:, :, None], 0.0)

    def fold_beams(self, num_beams: int) -> "SequenceLayout":
        """Join the beams of each source, which are consecutive in the batch, to one long sequence of queries."""
        length = num_beams * self.positions.shape[1]
        document_ids = None if self.document_ids is None else self.document_ids.reshape(-1, length)
        same = len(self.positions) == 1
        positions = self.positions.repeat(1, num_beams) if same else self.positions.reshape(-1, length)
        return SequenceLayout(document_ids, positions)


def positions_in_documents(document_ids: Tensor) -> Tensor:
    """Count positions from 0 inside each document. Documents may be packed and padded on either side; padding gets 0.

    >>> positions_in_documents(torch.tensor([[0, 1, 1, 1, 2, 2, 0, 0]]))
    tensor([[0, 0, 1, 2, 0, 1, 0, 0]])
    """
    index = torch.arange(document_ids.shape[1], device=document_ids.device).expand_as(document_ids)  # (B, T)
    starts = torch.ones_like(document_ids, dtype=torch.bool)
    starts[:, 1:] = document_ids[:, 1:] != document_ids[:, :-1]
    return (index - torch.where(starts, index, 0).cummax(dim=1).values).masked_fill(document_ids == 0, 0)


def make_layout(ids: Tensor, document_ids: Tensor | None = None, positions: Tensor | None = None) -> SequenceLayout:
    """Return the layout of `ids` (B, T). By default, each sequence is one document; positions count from 0."""
    if document_ids is not None and document_ids.shape != ids.shape[:2]:
        raise ValueError(
            f"document_ids has shape {tuple(document_ids.shape)} but ids has {tuple(ids.shape[:2])}: give one per token"
        )
    if positions is None:
        if document_ids is None:
            positions = torch.arange(ids.shape[1], device=ids.device)[None]
        else:
            positions = positions_in_documents(document_ids)
    return SequenceLayout(document_ids, positions)


class Mask(NamedTuple):
    """The rule of this module for one set of queries and one set of keys."""

    query: SequenceLayout
    key: SequenceLayout
    causal: bool = False
    window: int = 0  # the maximum distance between positions; 0: no limit

    @property
    def allows_all(self) -> bool:
        """Whether every query may attend to every key. It reads no tensor values, so False means "perhaps not"."""
        return self.query.document_ids is None and self.key.document_ids is None and not self.causal and not self.window

    def allows(
        self, query_documents: Tensor, key_documents: Tensor, query_positions: Tensor, key_positions: Tensor
    ) -> Tensor:
        """Apply the rule to tensors whose shapes broadcast."""
        allowed = (query_documents == key_documents) & (key_documents != 0)
        if self.causal:
            allowed = allowed & (key_positions <= query_positions)
        if self.window:
            allowed = allowed & ((query_positions - key_positions).abs() <= self.window)
        return allowed

    def document_id_pair(self) -> tuple[Tensor, Tensor]:
        """Return the document ids of queries and keys; they are all 1 if a layout has no ids."""
        query, key = self.query, self.key
        return (
            torch.ones_like(query.positions) if query.document_ids is None else query.document_ids,
            torch.ones_like(key.positions) if key.document_ids is None else key.document_ids,
        )

    def dense(self) -> Tensor:
        """Return the whole mask, (B or 1, 1, T, S): True where the query may attend to the key."""
        query_documents, key_documents = self.document_id_pair()
        return self.allows(
            query_documents[:, None, :, None],
            key_documents[:, None, None, :],
            self.query.positions[:, None, :, None],
            self.key.positions[:, None, None, :],
        )
