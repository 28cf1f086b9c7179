"""Which record, and which of its pieces, is number i: without storing anything for each record.

A running count is kept for every `BLOCK` records; the rest is worked out on demand. A billion records cost 125 MB.
"""

from collections.abc import Callable

import numpy as np

from qkv.data.ragged import Ints

BLOCK_RECORDS = 64
CHUNK_RECORDS = 2**20  # records looked at in one go; a multiple of BLOCK


class WindowIndex:
    """Pieces counted through all records; `counts` says how many pieces each of some records has.

    >>> index = WindowIndex(3, lambda records: np.array([2, 0, 1])[records])
    >>> index.total, [part.tolist() for part in index.locate(np.arange(3))]
    (3, [[0, 0, 2], [0, 1, 0]])
    """

    def __init__(self, num_records: int, windows_per_record: Callable[[Ints], Ints]):
        self.num_records = num_records
        self.windows_per_record = windows_per_record
        sums = [np.zeros(1, np.int64)]
        for first in range(0, num_records, CHUNK_RECORDS):
            found = windows_per_record(np.arange(first, min(first + CHUNK_RECORDS, num_records)))
            sums.append(np.add.reduceat(found, np.arange(0, len(found), BLOCK_RECORDS)))
        self.starts = np.cumsum(np.concatenate(sums))  # (blocks + 1,) pieces before each block, and in all
        self.total = int(self.starts[-1])

    def locate(self, windows: Ints) -> tuple[Ints, Ints]:
        """(n,) pieces → (record, which of its pieces)."""
        block = np.searchsorted(self.starts, windows, "right") - 1  # (n,)
        record = block[:, None] * BLOCK_RECORDS + np.arange(BLOCK_RECORDS)  # (n, BLOCK)
        known = record < self.num_records
        ends = np.cumsum(self.windows_per_record(np.where(known, record, 0)) * known, axis=1)
        number = np.asarray(windows) - self.starts[block]  # inside its block
        inside = (ends <= number[:, None]).sum(axis=1)  # how many records of the block end before it
        each = np.arange(len(block))
        before = np.where(inside > 0, ends[each, inside - 1], 0)
        return block * BLOCK_RECORDS + inside, number - before
