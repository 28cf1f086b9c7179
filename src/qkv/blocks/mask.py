"""Who may see whom. The one rule, stated once, and its four renderings.

Every token of a row carries a segment (0 is padding) and a position. Query i may see key j iff

    their segments are equal and not 0,
    and, if causal, j's position is not after i's,
    and, if there is a window, their positions are at most that far apart.

That is padding, the look-ahead mask, packed documents, cross-attention (source and target rows share segment
numbers), cached decoding (empty slots have segment 0) and the sliding window. What may not be seen gets a score of
−∞ before the softmax; a query that may see nothing gets zeros.

B batch, T queries, S keys, N documents
"""

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask, create_block_mask


class SequenceLayout(NamedTuple):
    """Where the tokens of a batch of rows stand."""

    document_ids: Tensor | None  # (B, T) int, 0 is padding; None: each row is one document, without padding
    positions: Tensor  # (B, T) int, or (1, T) where all rows count alike
    most: int = 0  # how many segments a row holds at most, where that is known; 0: not known
    counted: bool = False  # whether positions are known to be 0, 1, 2, … in every row
    longest: int = 0  # how many places a segment takes at most, where that is known; 0: as many as a row has

    @property
    def padding(self) -> Tensor | None:
        """(B, T) True where there is no token; None where there is one everywhere."""
        return None if self.document_ids is None else self.document_ids == 0

    def zero_padding(self, x: Tensor) -> Tensor:
        """x (B, T, C), zeros at padding. Nobody looks there, but a weight of zero times a NaN would still be NaN."""
        padding = self.padding
        return x if padding is None else x.masked_fill(padding[:, :, None], 0.0)

    def gather(self, indices: Tensor) -> "SequenceLayout":
        """Where the tokens at these columns (B, Q) of each row stand."""
        segment = None if self.document_ids is None else self.document_ids.gather(1, indices)
        return SequenceLayout(segment, self.positions.expand(len(indices), -1).gather(1, indices), self.most)

    def fold_beams(self, num_beams: int) -> "SequenceLayout":
        """Every `beams` rows, the beams of one source, become one row of queries, `beams` times as long."""
        length = num_beams * self.positions.shape[1]
        segment = None if self.document_ids is None else self.document_ids.reshape(-1, length)
        alike = len(self.positions) == 1
        position = self.positions.repeat(1, num_beams) if alike else self.positions.reshape(-1, length)
        return SequenceLayout(segment, position, self.most)


def count_positions(document_ids: Tensor) -> Tensor:
    """Count from 0 inside each text: the same for a text alone, padded on any side, or packed. Padding stays at 0.

    >>> positions_of(torch.tensor([[0, 1, 1, 1, 2, 2, 0, 0]]))
    tensor([[0, 0, 1, 2, 0, 1, 0, 0]])
    """
    index = torch.arange(document_ids.shape[1], device=document_ids.device).expand_as(document_ids)  # (B, T)
    starts = torch.ones_like(document_ids, dtype=torch.bool)
    starts[:, 1:] = document_ids[:, 1:] != document_ids[:, :-1]
    return (index - torch.where(starts, index, 0).cummax(dim=1).values).masked_fill(document_ids == 0, 0)


def make_layout(
    ids: Tensor, document_ids: Tensor | None = None, positions: Tensor | None = None, most: int = 0, longest: int = 0
) -> SequenceLayout:
    """The place of each token of `ids` (B, T), with what was not given filled in."""
    if document_ids is not None and document_ids.shape != ids.shape[:2]:
        raise ValueError(f"segment has shape {tuple(document_ids.shape)}, its tokens have {tuple(ids.shape[:2])}")
    counted = document_ids is None and positions is None
    if positions is None:
        if document_ids is None:
            positions = torch.arange(ids.shape[1], device=ids.device)[None]
        else:
            positions = count_positions(document_ids)
    return SequenceLayout(document_ids, positions, most, counted, longest)


class DocumentOffsets(NamedTuple):
    """Documents laid end to end, for variable-length kernels: document n is tokens offset[n] … offset[n + 1] − 1."""

    query: Tensor  # (N + 1,) int32
    key: Tensor  # (N + 1,) int32
    max_query_length: int
    max_key_length: int


class Mask(NamedTuple):
    """The rule between one set of queries and one set of keys."""

    query: SequenceLayout
    key: SequenceLayout
    causal: bool = False
    window: int = 0

    @property
    def is_full(self) -> bool:
        """Whether every query sees every key, known without looking at a tensor."""
        return self.query.document_ids is None and self.key.document_ids is None and not self.causal and not self.window

    @property
    def is_plain_causal(self) -> bool:
        """Whether it is the plain look-ahead mask over one document a row, known without looking at a tensor."""
        return self.causal and not self.window and self.query is self.key and self.key.counted

    def _rule(self, query_segment: Tensor, key_segment: Tensor, query: Tensor, key: Tensor) -> Tensor:
        """The rule itself, on broadcastable segments and positions."""
        see = (query_segment == key_segment) & (key_segment != 0)
        if self.causal:
            see = see & (key <= query)
        if self.window:
            see = see & ((query - key).abs() <= self.window)
        return see

    def _document_ids(self) -> tuple[Tensor, Tensor]:
        """Both segments, ones where a side has none."""
        query, key = self.query, self.key
        return (
            torch.ones_like(query.positions) if query.document_ids is None else query.document_ids,
            torch.ones_like(key.positions) if key.document_ids is None else key.document_ids,
        )

    def dense(self) -> Tensor:
        """The reference rendering: (B or 1, 1, T, S), True where the query may see the key."""
        query_segment, key_segment = self._document_ids()
        return self._rule(
            query_segment[:, None, :, None],
            key_segment[:, None, None, :],
            self.query.positions[:, None, :, None],
            self.key.positions[:, None, None, :],
        )

    def block_mask(self) -> BlockMask:
        """For FlexAttention: which blocks of the score matrix hold anything at all."""
        query_segment, key_segment = self._document_ids()
        rows = max(len(t) for t in (query_segment, key_segment, self.query.positions, self.key.positions))
        query_segment, query_position = query_segment.expand(rows, -1), self.query.positions.expand(rows, -1)
        key_segment, key_position = key_segment.expand(rows, -1), self.key.positions.expand(rows, -1)

        def rule(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
            row = b if rows > 1 else 0  # one row stands for all
            return self._rule(query_segment[row, q], key_segment[row, k], query_position[row, q], key_position[row, k])

        queries, keys = query_segment.shape[1], key_segment.shape[1]
        return create_block_mask(rule, rows, None, queries, keys, device=query_segment.device.type)

    def offsets(self, batch_size: int) -> DocumentOffsets:
        """For variable-length kernels. Segments must rise along each row and padding come last, as packing lays them.

        Padding is laid out as documents of its own: what it sees is thrown away afterwards.
        """
        queries, keys = self.query.positions.shape[1], self.key.positions.shape[1]
        query_segment, key_segment = self._document_ids()
        most = max(self.query.most, self.key.most)
        if not most:  # a look at the data, which waits for the device
            most = int(torch.maximum(query_segment.max(), key_segment.max()))
        # No document may be longer than what the kernel is told, padding included: it is cut into several.
        longest = min(self.query.longest or queries, queries), min(self.key.longest or keys, keys)
        cuts = max(-(-queries // longest[0]), -(-keys // longest[1]))
        return DocumentOffsets(
            _ends(query_segment.expand(batch_size, -1), most, longest[0], cuts),
            _ends(key_segment.expand(batch_size, -1), most, longest[1], cuts),
            *longest,
        )


def _ends(segment: Tensor, most: int, longest: int, cuts: int) -> Tensor:
    """Where each document ends, rows end to end; empty documents where a row has fewer: (rows · (most + cuts) + 1,)."""
    rows = segment.shape[0]
    padding = segment == 0
    into = (padding.cumsum(1) - 1) // longest if cuts > 1 else 0  # which document of padding
    last = torch.where(padding, most + into, segment - 1).long()  # (B, T) document number in its row, padding last
    ordered = (last[:, 1:] >= last[:, :-1]).all()  # checked on the device, so that nothing waits for it
    torch._assert_async(ordered, "variable-length kernels need segments that rise along each row, padding last")
    counts = torch.zeros(rows, most + cuts, dtype=torch.int32, device=segment.device)
    counts.scatter_add_(1, last, torch.ones_like(last, dtype=torch.int32))
    return torch.nn.functional.pad(counts.flatten().cumsum(0, dtype=torch.int32), (1, 0))
