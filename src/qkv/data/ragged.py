"""Ragged arrays: many short sequences in one flat array, indexed without Python loops.

A ragged array is a pair: a flat array with n sequences one after the other, and the length of each sequence.
"""

from collections.abc import Sequence

import numpy as np

IntArray = np.ndarray  # an array of integers; it has one dimension unless a comment gives a shape
Ragged = tuple[np.ndarray, IntArray]  # (flat array, length of each sequence)


def ragged_starts(lengths: IntArray) -> IntArray:
    """The index in the flat array at which each sequence begins.

    >>> ragged_starts(np.array([2, 0, 3])).tolist()
    [0, 2, 2]
    """
    starts = np.zeros(len(lengths), np.int64)
    np.cumsum(lengths[:-1], out=starts[1:])
    return starts


def ragged_index(starts: IntArray, lengths: IntArray) -> IntArray:
    """The indices starts[i] … starts[i] + lengths[i] − 1 for each i, concatenated.

    >>> ragged_index(np.array([5, 0]), np.array([2, 3])).tolist()
    [5, 6, 0, 1, 2]
    """
    shift = np.asarray(starts) - ragged_starts(lengths)
    return np.repeat(shift, lengths) + np.arange(int(np.sum(lengths)))


def ragged_join(parts: Sequence[Ragged]) -> Ragged:
    """Concatenate ragged arrays sequence by sequence: sequence i of the result joins sequence i of every part.

    >>> flat, lengths = ragged_join([(np.array([1, 2, 3]), np.array([2, 1])), (np.array([8, 9]), np.array([1, 1]))])
    >>> flat.tolist(), lengths.tolist()
    ([1, 2, 8, 3, 9], [3, 2])
    """
    lengths = np.sum([part_lengths for _, part_lengths in parts], axis=0)
    flat = np.empty(int(lengths.sum()), np.result_type(*[values for values, _ in parts]))
    starts = ragged_starts(lengths)
    for values, part_lengths in parts:
        flat[ragged_index(starts, part_lengths)] = values
        starts = starts + part_lengths
    return flat, lengths
