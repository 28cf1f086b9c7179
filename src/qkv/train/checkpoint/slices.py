"""Slices of tensors. With them, several ranks save one tensor together, and any number of ranks can read it.

The bounds of a slice are (offset, size): its start and its length in each dimension. An ordinary tensor is one slice at
offset 0. A parameter that is sharded over four ranks is saved as four slices.
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
        """Make a slice that is a whole tensor."""
        return cls(tensor, (0,) * tensor.ndim, tuple(tensor.shape))

    @property
    def bounds(self) -> SliceBounds:
        """The bounds of the slice: its offset and its size."""
        return self.offset, tuple(self.values.shape)


class TensorReader(Protocol):
    """Reads tensors, or slices of them, by name: a checkpoint, or the average of several."""

    def read_tensor(self, name: str) -> Tensor:
        """Read a whole tensor."""

    def read_slice(self, name: str, offset: Sequence[int], shape: Sequence[int]) -> Tensor:
        """Read the slice of `shape` at `offset`."""


def is_inside(bounds: SliceBounds, shape: Sequence[int]) -> bool:
    """Return whether a slice lies inside a tensor of this shape."""
    offset, size = bounds
    if not len(offset) == len(size) == len(shape):
        return False
    return all(o >= 0 and s >= 0 and o + s <= n for o, s, n in zip(offset, size, shape, strict=True))


def intersection(a: SliceBounds, b: SliceBounds) -> SliceBounds | None:
    """Return the bounds of the intersection of two slices, or None if it is empty.

    >>> intersection(((0, 0), (4, 2)), ((3, 1), (5, 5)))
    ((3, 1), (1, 1))
    """
    starts = tuple(map(max, a[0], b[0]))
    ends = [min(ao + an, bo + bn) for ao, an, bo, bn in zip(*a, *b, strict=True)]
    size = tuple(end - start for start, end in zip(starts, ends, strict=True))
    return (starts, size) if all(n > 0 for n in size) else None


def index_within(bounds: SliceBounds, origin: Sequence[int]) -> tuple[slice, ...]:
    """Return the index of a slice, relative to a tensor that starts at `origin`."""
    return tuple(slice(o - base, o - base + n) for o, n, base in zip(*bounds, origin, strict=True))


def tiling_problem(shape: Sequence[int], bounds: Iterable[SliceBounds]) -> str:
    """Check that slices cover a tensor of `shape` exactly once. Return the problem, or "" if there is none."""
    bounds = [bound for bound in bounds if prod(bound[1])]  # a rank without a part of the tensor has an empty slice
    outside = [bound for bound in bounds if not is_inside(bound, shape)]
    if outside:
        return f"the slice of {outside[0][1]} at {outside[0][0]} is not inside {tuple(shape)}"
    if _any_overlap(bounds):
        return "two slices overlap"
    covered, needed = sum(prod(size) for _, size in bounds), prod(shape)
    return "" if covered == needed else f"the slices hold {covered} of {needed} elements"


def _any_overlap(bounds: list[SliceBounds]) -> bool:
    """Return whether any two slices overlap.

    This sweeps along the dimension with the most different offsets. There, a slice is compared only with the slices
    that start before it and have not ended yet.
    """
    if len(bounds) < 2 or not bounds[0][0]:
        return len(bounds) > 1  # any two slices of a scalar overlap
    axis = max(range(len(bounds[0][0])), key=lambda d: len({offset[d] for offset, _ in bounds}))
    open_: list[SliceBounds] = []
    for one in sorted(bounds, key=lambda bound: bound[0][axis]):
        open_ = [other for other in open_ if other[0][axis] + other[1][axis] > one[0][axis]]
        if any(intersection(other, one) for other in open_):
            return True
        open_.append(one)
    return False
