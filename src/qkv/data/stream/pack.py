"""Pack examples of different lengths into sequences of one length, with little padding.

Only the lengths are needed, so packing is planned before any token is read. Both algorithms place the longest examples
first. With one sequence length, each example goes where it fits most tightly (best-fit decreasing). For pairs, whose
source and target are packed into two sequences together, each pair goes to the sequences whose free space has the most
similar proportions (the dot-product rule of Panigrahy et al. 2011), so that both fill up together.

The alternative is `group_by_length`: one example a sequence, batches of similar lengths with a token budget.

S is the number of sides: 1, or 2 for pairs (target, source).
"""

from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from qkv.data.ragged import IntArray, ragged_starts
from qkv.errors import UsageError

MAX_ARGMAX = 8
"""The largest values are found by repeated `argmax` if they are at most this many, otherwise by sorting."""


@dataclass(frozen=True)
class PackingLayout:
    """Where examples are: example[i] is document[i] of sequence[i], and starts at offset[i].

    Entries are sorted by sequence and document. Examples of length 0, which are left out, have no entry.
    """

    example: IntArray  # (n,) indices into the lengths that were given
    sequence: IntArray  # (n,)
    document: IntArray  # (n,) counted from 1 in each sequence
    offset: IntArray  # (n, S)
    num_sequences: int

    def padding_fraction(self, lengths: IntArray, max_lengths: tuple[int, ...]) -> float:
        """The fraction of positions that are padding."""
        return 1 - float(lengths[self.example].sum()) / max(self.num_sequences * sum(max_lengths), 1)


def pack(lengths: IntArray, max_lengths: tuple[int, ...], max_documents: int) -> PackingLayout:
    """Pack examples of `lengths` (n, S) into sequences of length `max_lengths`, at most `max_documents` in each.

    >>> layout = pack(np.array([[6], [3], [4], [5]]), (10,), max_documents=8)
    >>> layout.num_sequences, layout.sequence.tolist(), layout.document.tolist(), layout.offset[:, 0].tolist()
    (2, [0, 0, 1, 1], [1, 2, 1, 2], [0, 6, 0, 3])
    """
    if (lengths > np.asarray(max_lengths)).any():
        longest = tuple(lengths.max(axis=0).tolist())
        raise UsageError(
            f"an example of {longest} tokens does not fit in a sequence of {max_lengths} tokens; raise max_length, or "
            "leave out or truncate long examples"
        )
    present = np.flatnonzero(lengths.any(axis=1))
    sizes = lengths[present]
    if len(max_lengths) == 1:
        sequence, num_sequences = best_fit_decreasing(sizes[:, 0], max_lengths[0], max_documents)
    else:
        sequence, num_sequences = dot_product_fit(sizes, max_lengths, max_documents)
    order = np.argsort(sequence, kind="stable")  # within a sequence, examples keep their order
    return assign_offsets(present[order], sequence[order], sizes[order], num_sequences)


def assign_offsets(example: IntArray, sequence: IntArray, sizes: IntArray, num_sequences: int) -> PackingLayout:
    """Number the examples of each sequence and place them end to end; the entries are sorted by sequence."""
    starts = ragged_starts(np.bincount(sequence, minlength=num_sequences))
    first = starts[sequence]  # the first entry of each entry's sequence
    before = np.cumsum(sizes, axis=0) - sizes  # (n, S)
    return PackingLayout(
        example=example,
        sequence=sequence,
        document=np.arange(len(sequence)) - first + 1,
        offset=before - before[first],
        num_sequences=num_sequences,
    )


def best_fit_decreasing(sizes: IntArray, max_length: int, max_documents: int) -> tuple[IntArray, int]:
    """Place each example in the fullest sequence with room for it: (sequence of each example, number of sequences).

    Sequences are grouped by their free space. A Python integer is the bit set of all free spaces that occur, so the
    tightest fit is the lowest set bit at or above the length. This takes about a microsecond for each example.
    """
    sequence = np.empty(len(sizes), np.int64)
    is_full = sizes == max_length
    num_sequences = int(is_full.sum())
    sequence[is_full] = np.arange(num_sequences)  # an example that fills a sequence needs no search
    others = np.flatnonzero(~is_full)
    order = others[np.argsort(-sizes[others], kind="stable")].tolist()
    by_space: list[list[int]] = [[] for _ in range(max_length + 1)]  # free space → the sequences that have it
    spaces = 0  # bit s is set iff by_space[s] is not empty
    num_documents = [0] * (num_sequences + len(order))
    for index, size in zip(order, sizes[order].tolist(), strict=True):
        fitting = spaces >> size
        if fitting:
            space = size + (fitting & -fitting).bit_length() - 1
            chosen = by_space[space].pop()
            if not by_space[space]:
                spaces ^= 1 << space
        else:
            chosen, space = num_sequences, max_length
            num_sequences += 1
        sequence[index] = chosen
        num_documents[chosen] += 1
        space -= size
        if space and num_documents[chosen] < max_documents:
            if not by_space[space]:
                spaces |= 1 << space
            by_space[space].append(chosen)
    return sequence, num_sequences


def dot_product_fit(sizes: IntArray, max_lengths: tuple[int, ...], max_documents: int) -> tuple[IntArray, int]:
    """Place each pair in the sequences whose free space matches it best: (sequence of each pair, number of sequences).

    It starts with the minimum number of sequences that the fuller side needs, and opens more only when nothing fits.
    Pairs with the same two lengths are placed in one step, one pair in each sequence, the best sequences first.
    """
    fractions = sizes / np.asarray(max_lengths)  # (n, 2) lengths as fractions of the maximum length
    num_sequences = max(int(np.ceil(fractions.sum(axis=0).max(initial=0) - 1e-9)), -(-len(sizes) // max_documents))
    # The free space of all sequences that may be opened, and arrays for results: this loop runs for every pair of
    # lengths, and allocating takes as long as computing.
    target_space, source_space = (np.full(num_sequences + len(sizes), float(length)) for length in max_lengths)
    matches, source_matches = (np.empty(num_sequences + len(sizes)) for _ in range(2))
    target_fits, source_fits = (np.empty(num_sequences + len(sizes), bool) for _ in range(2))
    num_documents = [0] * (num_sequences + len(sizes))
    sequence = np.empty(len(sizes), np.int64)
    order = np.lexsort((sizes[:, 1], sizes[:, 0], -fractions.max(axis=1)))  # largest first, equal sizes together
    ordered = sizes[order]
    starts = np.flatnonzero(np.diff(ordered, axis=0, prepend=-1).any(axis=1)).tolist()
    for start, end in pairwise([*starts, len(order)]):
        target, source = ordered[start].tolist()
        target_weight, source_weight = target / max_lengths[0] ** 2, source / max_lengths[1] ** 2
        while start < end:
            opened = slice(num_sequences)
            match = np.multiply(target_space[opened], target_weight, out=matches[opened])
            match += np.multiply(source_space[opened], source_weight, out=source_matches[opened])
            fits = np.greater_equal(target_space[opened], target, out=target_fits[opened])
            fits &= np.greater_equal(source_space[opened], source, out=source_fits[opened])
            match *= fits
            best = _largest(match, end - start)
            if not best:
                by_length = [length // size for length, size in zip(max_lengths, (target, source), strict=True) if size]
                num_sequences += -(-(end - start) // min(max_documents, *by_length))
                continue
            sequence[order[start : start + len(best)]] = best
            start += len(best)
            for index in best:
                num_documents[index] += 1
                target_space[index] = target_space[index] - target if num_documents[index] < max_documents else -1
                source_space[index] -= source
    used, sequence = np.unique(sequence, return_inverse=True)  # drops sequences without examples
    return sequence, len(used)


def _largest(values: np.ndarray, count: int) -> list[int]:
    """The indices of the `count` largest values above 0, the largest first; equal values in their order."""
    if count > MAX_ARGMAX:
        above = np.flatnonzero(values)
        return [int(index) for index in above[np.argsort(-values[above], kind="stable")[:count]]]
    indices: list[int] = []
    while len(indices) < count and len(values):
        index = int(values.argmax())
        if values[index] == 0:
            break
        values[index] = 0
        indices.append(index)
    return indices


def group_by_length(lengths: IntArray, max_tokens: int) -> tuple[PackingLayout, IntArray, IntArray]:
    """One example a sequence, sorted by length, in groups of at most `max_tokens` positions, padding included.

    Returns the layout, the first sequence of each group (groups + 1,), and the sequence length of each group
    (groups, S). A single example longer than `max_tokens` is a group by itself.
    """
    present = np.flatnonzero(lengths.any(axis=1))
    sizes = lengths[present]
    order = present[np.lexsort((sizes.sum(axis=1), sizes.max(axis=1)))]  # by the longer side, then by the sum
    first_sequences: list[int] = []
    widths: list[list[int]] = []
    for index, size in enumerate(lengths[order].tolist()):
        wider = [max(pair) for pair in zip(widths[-1], size, strict=True)] if widths else size
        if not first_sequences or sum(wider) * (index - first_sequences[-1] + 1) > max_tokens:
            first_sequences.append(index)
            widths.append(size)
        else:
            widths[-1] = wider
    layout = assign_offsets(order, np.arange(len(order)), lengths[order], len(order))
    group_lengths = np.array(widths, np.int64).reshape(-1, lengths.shape[1])
    return layout, np.array([*first_sequences, len(order)]), group_lengths
