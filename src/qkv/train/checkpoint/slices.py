"""Slices of tensors: several ranks can save one tensor together, and any number of ranks can read it back.

The bounds of a slice are (offset, size): where it starts in each dimension, and how far it extends. An ordinary tensor
is one slice at offset 0. A parameter that is sharded over four ranks is four slices, one on each.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import prod
from typing import Protocol

from torch import Tensor

SliceBounds = tuple[tuple[int, ...], tuple[int, ...]]  # offset, size


@dataclass(frozen=True)
class TensorSlice:
    """`values` is the slice at `offset` of a whole tensor of `shape`.

    >>> TensorSlice(torch.zeros(2, 3), offset=(4, 0), shape=(6, 3))  # the last two of six rows  # doctest: +SKIP
    """

    values: Tensor
    offset: tuple[int, ...]
    shape: tuple[int, ...]

    def __post_init__(self) -> None:
        if not is_inside(self.bounds, self.shape):
            raise ValueError(f"a slice of {tuple(self.values.shape)} at {self.offset} is not inside {self.shape}")

    @classmethod
    def whole(cls, tensor: Tensor) -> "TensorSlice":
        """The slice that is all of a tensor."""
        return cls(tensor, (0,) * tensor.ndim, tuple(tensor.shape))

    @property
    def bounds(self) -> SliceBounds:
        """Offset and size."""
        return self.offset, tuple(self.values.shape)


class TensorReader(Protocol):
    """Reads tensors, or slices of them, by name: a checkpoint, or the average of several."""

    def read_tensor(self, name: str) -> Tensor:
        """The whole tensor."""

    def read_slice(self, name: str, offset: Sequence[int], shape: Sequence[int]) -> Tensor:
        """The slice of `shape` at `offset`."""


def is_inside(bounds: SliceBounds, shape: Sequence[int]) -> bool:
    """Whether a slice lies inside a tensor of this shape."""
    offset, size = bounds
    if not len(offset) == len(size) == len(shape):
        return False
    return all(o >= 0 and s >= 0 and o + s <= n for o, s, n in zip(offset, size, shape, strict=True))


def intersection(a: SliceBounds, b: SliceBounds) -> SliceBounds | None:
    """The bounds of what two slices have in common, or None if that is empty.

    >>> intersection(((0, 0), (4, 2)), ((3, 1), (5, 5)))
    ((3, 1), (1, 1))
    """
    starts = tuple(map(max, a[0], b[0]))
    ends = [min(ao + an, bo + bn) for ao, an, bo, bn in zip(*a, *b, strict=True)]
    size = tuple(end - start for start, end in zip(starts, ends, strict=True))
    return (starts, size) if all(n > 0 for n in size) else None


def index_within(bounds: SliceBounds, origin: Sequence[int]) -> tuple[slice, ...]:
    """The index of a slice in a tensor that itself starts at `origin`."""
    return tuple(slice(o - base, o - base + n) for o, n, base in zip(*bounds, origin, strict=True))


def tiling_problem(shape: Sequence[int], bounds: Iterable[SliceBounds]) -> str:
    """Why slices do not cover a tensor of `shape` exactly once; "" if they do."""
    bounds = [one for one in bounds if prod(one[1])]  # a rank that holds nothing of a tensor has an empty slice
    outside = [one for one in bounds if not is_inside(one, shape)]
    if outside:
        return f"the slice of {outside[0][1]} at {outside[0][0]} is not inside {tuple(shape)}"
    if _any_overlap(bounds):
        return "two slices overlap"
    covered, needed = sum(prod(size) for _, size in bounds), prod(shape)
    return "" if covered == needed else f"the slices hold {covered} of {needed} elements"


def _any_overlap(bounds: list[SliceBounds]) -> bool:
    """Sweep along the dimension with the most cuts, and compare a slice only with those that are still open there."""
    if len(bounds) < 2 or not bounds[0][0]:
        return len(bounds) > 1  # a scalar can be in one slice only
    axis = max(range(len(bounds[0][0])), key=lambda d: len({offset[d] for offset, _ in bounds}))
    open_: list[SliceBounds] = []
    for one in sorted(bounds, key=lambda bound: bound[0][axis]):
        open_ = [other for other in open_ if other[0][axis] + other[1][axis] > one[0][axis]]
        if any(intersection(other, one) for other in open_):
            return True
        open_.append(one)
    return False
