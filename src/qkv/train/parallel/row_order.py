"""The order of rows in a matrix that tensor parallelism has reordered. Checkpoints have the original order."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class RowOrder:
    """The order of the rows of a reordered matrix. `ranges` has (first old row, number of rows) in the new order.

    >>> RowOrder.interleave([4, 2, 2], num_shards=2).ranges
    ((0, 2), (4, 1), (6, 1), (2, 2), (5, 1), (7, 1))
    """

    ranges: tuple[tuple[int, int], ...]

    @classmethod
    def interleave(cls, matrix_rows: Sequence[int], num_shards: int) -> "RowOrder":
        """Return the order for a fused matrix, such as qkv: shard 0 of each part, then shard 1 of each, and so on."""
        starts = [sum(matrix_rows[:i]) for i in range(len(matrix_rows))]
        return cls(
            tuple(
                (start + shard * (rows // num_shards), rows // num_shards)
                for shard in range(num_shards)
                for start, rows in zip(starts, matrix_rows, strict=True)
            )
        )

    def old_rows(self) -> Tensor:
        """Return the old row of each new row."""
        return torch.cat([torch.arange(first, first + rows) for first, rows in self.ranges])

    def old_ranges(self, first: int, last: int) -> list[tuple[int, int, int]]:
        """Return ranges (new row, old row, number of rows) that cover the new rows from `first` to before `last`.

        >>> RowOrder.interleave([4, 2, 2], num_shards=2).old_ranges(1, 4)
        [(1, 1, 1), (2, 4, 1), (3, 6, 1)]
        """
        found, new = [], 0
        for old, rows in self.ranges:
            begin, end = max(first, new), min(last, new + rows)
            if begin < end:
                found.append((begin, old + begin - new, end - begin))
            new += rows
        return found
