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


class Place(NamedTuple):
    """Where the tokens of a batch of rows stand."""

    segment: Tensor | None  # (B, T) int, 0 is padding; None: each row is one document, without padding
    position: Tensor  # (B, T) int, or (1, T) where all rows count alike
    most: int = 0  # how many segments a row holds at most, where that is known; 0: not known
    counted: bool = False  # whether positions are known to be 0, 1, 2, … in every row
    longest: int = 0  # how many places a segment takes at most, where that is known; 0: as many as a row has

    @property
    def padding(self) -> Tensor | None:
        """(B, T) True where there is no token; None where there is one everywhere."""
        return None if self.segment is None else self.segment == 0

    def blank(self, x: Tensor) -> Tensor:
        """x (B, T, C), zeros at padding. Nobody looks there, but a weight of zero times a NaN would still be NaN."""
        padding = self.padding
        return x if padding is None else x.masked_fill(padding[:, :, None], 0.0)

    def at(self, column: Tensor) -> "Place":
        """Where the tokens at these columns (B, Q) of each row stand."""
        segment = None if self.segment is None else self.segment.gather(1, column)
        return Place(segment, self.position.expand(len(column), -1).gather(1, column), self.most)

    def fold(self, beams: int) -> "Place":
        """Every `beams` rows, the beams of one source, become one row of queries, `beams` times as long."""
        length = beams * self.position.shape[1]
        segment = None if self.segment is None else self.segment.reshape(-1, length)
        alike = len(self.position) == 1
        position = self.position.repeat(1, beams) if alike else self.position.reshape(-1, length)
        return Place(segment, position, self.most)


def positions_of(segment: Tensor) -> Tensor:
    """Count from 0 inside each text: the same for a text alone, padded on any side, or packed. Padding stays at 0.

    >>> positions_of(torch.tensor([[0, 1, 1, 1, 2, 2, 0, 0]]))
    tensor([[0, 0, 1, 2, 0, 1, 0, 0]])
    """
    index = torch.arange(segment.shape[1], device=segment.device).expand_as(segment)  # (B, T)
    starts = torch.ones_like(segment, dtype=torch.bool)
    starts[:, 1:] = segment[:, 1:] != segment[:, :-1]
    return (index - torch.where(starts, index, 0).cummax(dim=1).values).masked_fill(segment == 0, 0)


def place_of(
    ids: Tensor, segment: Tensor | None = None, position: Tensor | None = None, most: int = 0, longest: int = 0
) -> Place:
    """The place of each token of `ids` (B, T), with what was not given filled in."""
    if segment is not None and segment.shape != ids.shape[:2]:
        raise ValueError(f"segment has shape {tuple(segment.shape)}, its tokens have {tuple(ids.shape[:2])}")
    counted = segment is None and position is None
    if position is None:
        if segment is None:
            position = torch.arange(ids.shape[1], device=ids.device)[None]
        else:
            position = positions_of(segment)
    return Place(segment, position, most, counted, longest)


class Offsets(NamedTuple):
    """Documents laid end to end, for variable-length kernels: document n is tokens offset[n] … offset[n + 1] − 1."""

    query: Tensor  # (N + 1,) int32
    key: Tensor  # (N + 1,) int32
    longest_query: int
    longest_key: int


class Mask(NamedTuple):
    """The rule between one set of queries and one set of keys."""

    query: Place
    key: Place
    causal: bool = False
    window: int = 0

    @property
    def everything(self) -> bool:
        """Whether every query sees every key, known without looking at a tensor."""
        return self.query.segment is None and self.key.segment is None and not self.causal and not self.window

    @property
    def triangle(self) -> bool:
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

    def _segments(self) -> tuple[Tensor, Tensor]:
        """Both segments, ones where a side has none."""
        query, key = self.query, self.key
        return (
            torch.ones_like(query.position) if query.segment is None else query.segment,
            torch.ones_like(key.position) if key.segment is None else key.segment,
        )

    def dense(self) -> Tensor:
        """The reference rendering: (B or 1, 1, T, S), True where the query may see the key."""
        query_segment, key_segment = self._segments()
        return self._rule(
            query_segment[:, None, :, None],
            key_segment[:, None, None, :],
            self.query.position[:, None, :, None],
            self.key.position[:, None, None, :],
        )

    def blocks(self) -> BlockMask:
        """For FlexAttention: which blocks of the score matrix hold anything at all."""
        query_segment, key_segment = self._segments()
        rows = max(len(t) for t in (query_segment, key_segment, self.query.position, self.key.position))
        query_segment, query_position = query_segment.expand(rows, -1), self.query.position.expand(rows, -1)
        key_segment, key_position = key_segment.expand(rows, -1), self.key.position.expand(rows, -1)

        def rule(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
            row = b if rows > 1 else 0  # one row stands for all
            return self._rule(query_segment[row, q], key_segment[row, k], query_position[row, q], key_position[row, k])

        queries, keys = query_segment.shape[1], key_segment.shape[1]
        return create_block_mask(rule, rows, None, queries, keys, device=query_segment.device.type)

    def offsets(self, rows: int) -> Offsets:
        """For variable-length kernels. Segments must rise along each row and padding come last, as packing lays them.

        Padding is laid out as documents of its own: what it sees is thrown away afterwards.
        """
        queries, keys = self.query.position.shape[1], self.key.position.shape[1]
        query_segment, key_segment = self._segments()
        most = max(self.query.most, self.key.most)
        if not most:  # a look at the data, which waits for the device
            most = int(torch.maximum(query_segment.max(), key_segment.max()))
        # No document may be longer than what the kernel is told, padding included: it is cut into several.
        longest = min(self.query.longest or queries, queries), min(self.key.longest or keys, keys)
        cuts = max(-(-queries // longest[0]), -(-keys // longest[1]))
        return Offsets(
            _ends(query_segment.expand(rows, -1), most, longest[0], cuts),
            _ends(key_segment.expand(rows, -1), most, longest[1], cuts),
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
