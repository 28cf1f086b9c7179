"""Padding: token sequences of unequal length as one rectangular tensor."""

from collections.abc import Sequence
from typing import Any, Literal

import torch
from torch import Tensor


def pad_sequences(
    sequences: Sequence[Sequence[int] | Any], value: int, *, side: Literal["left", "right"] = "right"
) -> Tensor:
    """Sequences (lists, arrays or tensors of integers) as one tensor (B, T), padded with `value` on one side.

    >>> pad_sequences([[5, 6, 7], [8]], 0).tolist()
    [[5, 6, 7], [8, 0, 0]]
    """
    length = max([1, *map(len, sequences)])  # a batch of empty sequences still has one position
    out = torch.full((len(sequences), length), value, dtype=torch.long)
    for i, sequence in enumerate(sequences):
        start = length - len(sequence) if side == "left" else 0
        out[i, start : start + len(sequence)] = torch.as_tensor(sequence, dtype=torch.long)
    return out
