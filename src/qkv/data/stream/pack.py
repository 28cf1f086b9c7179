"""Packing: examples of many lengths laid into rows of one length, with as little padding as can be.

Only lengths are needed, so a plan is made before any token is read. Both ways place the longest examples first.
One row length: each goes where it fits most tightly (best-fit decreasing). Two (source and target rows in step): all
rows are open at once, and each pair goes to the row whose remaining rooms point its way (the dot-product rule of
Panigrahy et al. 2011), so that both rows fill up together.

The alternative is `padded`: examples of about the same length side by side, a token budget for each batch.
"""

from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from qkv.data.ragged import Ints, ragged_starts
from qkv.errors import UsageError


@dataclass(frozen=True)
class PackingLayout:
    """Where examples lie: example `example[i]` in row `row[i]`, as segment `segment[i]`, from place `offset[i]` on.

    Entries are sorted by row and by segment. Examples that were left out (length 0) have no entry.
    """

    example: Ints  # (n,) numbers into the lengths that were given
    sequence: Ints  # (n,)
    document: Ints  # (n,) counted from 1 in each row
    offset: Ints  # (n, streams)
    num_sequences: int

    def padding_fraction(self, lengths: Ints, capacity: tuple[int, ...]) -> float:
        """The share of places that hold no token."""
        return 1 - float(lengths[self.example].sum()) / max(self.num_sequences * sum(capacity), 1)


def pack(lengths: Ints, capacity: tuple[int, ...], max_documents: int) -> PackingLayout:
    """Lay examples of `lengths` (n, streams) into rows of `capacity`, at most `texts` of them in a row.

    >>> layout = pack(np.array([[6], [3], [4], [5]]), (10,), max_documents=8)
    >>> layout.num_sequences, layout.sequence.tolist(), layout.document.tolist(), layout.offset[:, 0].tolist()
    (2, [0, 0, 1, 1], [1, 2, 1, 2], [0, 6, 0, 3])
    """
    if (lengths > np.asarray(capacity)).any():
        worst = lengths.max(axis=0)
        raise UsageError(f"an example of {tuple(worst.tolist())} places does not fit rows of {capacity}")
    present = np.flatnonzero(lengths.any(axis=1))
    sizes = lengths[present]
    if len(capacity) == 1:
        row, rows = best_fit_decreasing(sizes[:, 0], capacity[0], max_documents)
    else:
        row, rows = dot_product_fit(sizes, capacity, max_documents)
    order = np.argsort(row, kind="stable")  # inside a row, examples keep the order in which they were dealt
    return assign_offsets(present[order], row[order], sizes[order], rows)


def assign_offsets(example: Ints, sequence: Ints, sizes: Ints, num_sequences: int) -> PackingLayout:
    """Number and place the examples of each row one after the other; entries come sorted by row."""
    first = ragged_starts(np.bincount(sequence, minlength=num_sequences))[
        sequence
    ]  # the entry with which each entry's row begins
    before = np.cumsum(sizes, axis=0) - sizes  # (n, streams)
    return PackingLayout(
        example=example,
        sequence=sequence,
        document=np.arange(len(sequence)) - first + 1,
        offset=before - before[first],
        num_sequences=num_sequences,
    )


def best_fit_decreasing(sizes: Ints, capacity: int, max_documents: int) -> tuple[Ints, int]:
    """Best-fit decreasing: each example into the fullest row that still has room for it. (row of each, rows).

    Rows are kept by how much room they have, and the rooms that some row has are the bits of one big integer: the
    tightest fit is its lowest bit at or above the length. A microsecond an example, however many rows there are.
    """
    row = np.empty(len(sizes), np.int64)
    whole = sizes == capacity
    rows = int(whole.sum())
    row[whole] = np.arange(rows)  # what fills a row by itself needs no search
    others = np.flatnonzero(~whole)
    order = others[np.argsort(-sizes[others], kind="stable")].tolist()
    by_room: list[list[int]] = [[] for _ in range(capacity + 1)]  # room → the rows that have it
    rooms = 0  # bit r is set iff by_room[r] is not empty
    held = [0] * (rows + len(order))  # examples in each row
    for index, size in zip(order, sizes[order].tolist(), strict=True):
        fitting = rooms >> size
        if fitting:
            room = size + (fitting & -fitting).bit_length() - 1
            chosen = by_room[room].pop()
            if not by_room[room]:
                rooms ^= 1 << room
        else:
            chosen, room = rows, capacity
            rows += 1
        row[index] = chosen
        held[chosen] += 1
        room -= size
        if room and held[chosen] < max_documents:
            if not by_room[room]:
                rooms |= 1 << room
            by_room[room].append(chosen)
    return row, rows


def dot_product_fit(sizes: Ints, capacity: tuple[int, ...], max_documents: int) -> tuple[Ints, int]:
    """Two rows in step: each pair to the rows whose rooms match its shape best. (row of each, rows).

    It starts with as many rows as the fuller side needs at least, and opens more only when nothing fits. Pairs of the
    same two lengths are dealt together, one to each of the best rows: after taking one, a row is no longer the best.
    """
    shares = sizes / np.asarray(capacity)  # (n, 2) of a row
    rows = max(int(np.ceil(shares.sum(axis=0).max(initial=0) - 1e-9)), -(-len(sizes) // max_documents))
    target, source = (np.full(rows + len(sizes), float(room)) for room in capacity)  # the room of rows that may be
    held = np.zeros(rows + len(sizes), np.int64)
    row = np.empty(len(sizes), np.int64)
    order = np.lexsort((sizes[:, 1], sizes[:, 0], -shares.max(axis=1)))  # largest first, equal ones side by side
    dealt = sizes[order]
    begins = np.flatnonzero(np.diff(dealt, axis=0, prepend=-1).any(axis=1)).tolist()
    for begin, end in pairwise([*begins, len(order)]):
        one, two = dealt[begin].tolist()
        aim, aim_two = one / capacity[0] ** 2, two / capacity[1] ** 2  # pair's share · row's share of room
        while begin < end:
            left, left_two = target[:rows], source[:rows]
            match = (left * aim + left_two * aim_two) * ((left >= one) & (left_two >= two))
            best = match.argmax(keepdims=True) if rows else np.zeros(0, np.int64)
            if rows == 0 or match[best[0]] == 0:
                each = min(
                    max_documents, *(room // size for room, size in zip(capacity, (one, two), strict=True) if size)
                )
                rows += -(-(end - begin) // each)
                continue
            if end - begin > 1:
                fitting = np.flatnonzero(match)
                best = fitting[np.argsort(-match[fitting], kind="stable")[: end - begin]]
            row[order[begin : begin + len(best)]] = best
            begin += len(best)
            target[best] -= one
            source[best] -= two
            held[best] += 1
            target[best[held[best] == max_documents]] = -1  # closed
    used, row = np.unique(row, return_inverse=True)  # rows that nothing came to are dropped
    return row, len(used)


def group_by_length(lengths: Ints, max_tokens: int) -> tuple[PackingLayout, Ints, Ints]:
    """Examples one a row, sorted by length, in groups of at most `budget` places with their padding.

    Returns the layout, the first row of each group (groups + 1,), and the row lengths of each group (groups, streams).
    A single example longer than the budget is a group of its own.
    """
    present = np.flatnonzero(lengths.any(axis=1))
    sizes = lengths[present]
    order = present[np.lexsort((sizes.sum(axis=1), sizes.max(axis=1)))]  # by the longer side, then by both together
    firsts: list[int] = []
    widths: list[list[int]] = []
    for place, size in enumerate(lengths[order].tolist()):
        wider = [max(pair) for pair in zip(widths[-1], size, strict=True)] if widths else size
        if not firsts or sum(wider) * (place - firsts[-1] + 1) > max_tokens:
            firsts.append(place)
            widths.append(size)
        else:
            widths[-1] = wider
    layout = assign_offsets(order, np.arange(len(order)), lengths[order], len(order))
    return layout, np.array([*firsts, len(order)]), np.array(widths, np.int64).reshape(-1, lengths.shape[1])
