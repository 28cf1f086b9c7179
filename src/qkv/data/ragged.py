"""Many short sequences in one flat array: the few index tricks that keep Python loops out of the rows.

A ragged array is a flat array and the length of each of its n sequences, laid end to end.
"""

from collections.abc import Sequence

import numpy as np

Ints = np.ndarray  # integers, one-dimensional unless said
Ragged = tuple[np.ndarray, Ints]  # the flat array, the length of each sequence


def ragged_starts(lengths: Ints) -> Ints:
    """Where each sequence begins in the flat array.

    >>> ragged_starts(np.array([2, 0, 3])).tolist()
    [0, 2, 2]
    """
    starts = np.zeros(len(lengths), np.int64)
    np.cumsum(lengths[:-1], out=starts[1:])
    return starts


def ragged_index(starts: Ints, lengths: Ints) -> Ints:
    """starts[i], starts[i] + 1, … for lengths[i] places, for each i in turn.

    >>> ragged_index(np.array([5, 0]), np.array([2, 3])).tolist()
    [5, 6, 0, 1, 2]
    """
    shift = np.asarray(starts) - ragged_starts(lengths)
    return np.repeat(shift, lengths) + np.arange(int(np.sum(lengths)))


def ragged_join(parts: Sequence[Ragged]) -> Ragged:
    """Sequence i of the result is sequence i of each part, one after the other: (flat, lengths).

    >>> flat, lengths = ragged_join([(np.array([1, 2, 3]), np.array([2, 1])), (np.array([8, 9]), np.array([1, 1]))])
    >>> flat.tolist(), lengths.tolist()
    ([1, 2, 8, 3, 9], [3, 2])
    """
    lengths = np.sum([part_lengths for _, part_lengths in parts], axis=0)
    flat = np.empty(int(lengths.sum()), np.result_type(*[values for values, _ in parts]))
    place = ragged_starts(lengths)
    for values, part_lengths in parts:
        flat[ragged_index(place, part_lengths)] = values
        place = place + part_lengths
    return flat, lengths
