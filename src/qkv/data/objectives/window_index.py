"""Find the record of window number i without storing a number for each record.

The number of windows before each block of `BLOCK_RECORDS` records is stored, and the rest is computed on demand. A
billion records need 125 MB.
"""

from collections.abc import Callable

import numpy as np

from qkv.data.ragged import IntArray

BLOCK_RECORDS = 64
CHUNK_RECORDS = 2**20  # number of records counted at a time; a multiple of BLOCK_RECORDS


class WindowIndex:
    """Numbers the windows of all records. `windows_per_record(records)` returns the number of windows of each record.

    >>> index = WindowIndex(3, lambda records: np.array([2, 0, 1])[records])
    >>> index.total, [part.tolist() for part in index.locate(np.arange(3))]
    (3, [[0, 0, 2], [0, 1, 0]])
    """

    def __init__(self, num_records: int, windows_per_record: Callable[[IntArray], IntArray]):
        self.num_records = num_records
        self.windows_per_record = windows_per_record
        sums = [np.zeros(1, np.int64)]
        for first in range(0, num_records, CHUNK_RECORDS):
            counts = windows_per_record(np.arange(first, min(first + CHUNK_RECORDS, num_records)))
            sums.append(np.add.reduceat(counts, np.arange(0, len(counts), BLOCK_RECORDS)))
        # (blocks + 1,) number of windows before each block, then the total
        self.starts = np.cumsum(np.concatenate(sums))
        self.total = int(self.starts[-1])

    def locate(self, windows: IntArray) -> tuple[IntArray, IntArray]:
        """(n,) window numbers → (record, index of the window in its record)."""
        block = np.searchsorted(self.starts, windows, "right") - 1  # (n,)
        record = block[:, None] * BLOCK_RECORDS + np.arange(BLOCK_RECORDS)  # (n, BLOCK_RECORDS)
        exists = record < self.num_records
        ends = np.cumsum(self.windows_per_record(np.where(exists, record, 0)) * exists, axis=1)
        in_block = np.asarray(windows) - self.starts[block]
        records_before = (ends <= in_block[:, None]).sum(axis=1)
        windows_before = np.where(records_before > 0, ends[np.arange(len(block)), records_before - 1], 0)
        return block * BLOCK_RECORDS + records_before, in_block - windows_before
