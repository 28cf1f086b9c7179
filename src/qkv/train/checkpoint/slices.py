"""Pieces: boxes of whole tensors, so that many processes can keep one tensor and any number of them read it back.

A box is (offset, size): where it begins in each dimension, and how far it reaches. An ordinary tensor is one piece,
at offset 0. A parameter that is sharded over four processes is four pieces, one in each.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import prod

from torch import Tensor

SliceBounds = tuple[tuple[int, ...], tuple[int, ...]]  # offset, size


@dataclass(frozen=True)
class TensorSlice:
    """`values` are the box at `offset` of a whole tensor of `shape`.

    >>> Piece(torch.zeros(2, 3), offset=(4, 0), shape=(6, 3))  # the last two of six rows
    """

    values: Tensor
    offset: tuple[int, ...]
    shape: tuple[int, ...]

    def __post_init__(self) -> None:
        if not is_inside(self.bounds, self.shape):
            raise ValueError(f"a box of {tuple(self.values.shape)} at {self.offset} is not inside {self.shape}")

    @classmethod
    def whole(cls, tensor: Tensor) -> "TensorSlice":
        """The piece that is all of a tensor."""
        return cls(tensor, (0,) * tensor.ndim, tuple(tensor.shape))

    @property
    def bounds(self) -> SliceBounds:
        return self.offset, tuple(self.values.shape)


def is_inside(bounds: SliceBounds, shape: Sequence[int]) -> bool:
    """Whether a box lies in a tensor of this shape."""
    offset, size = bounds
    if not len(offset) == len(size) == len(shape):
        return False
    return all(o >= 0 and s >= 0 and o + s <= n for o, s, n in zip(offset, size, shape, strict=True))


def intersection(a: SliceBounds, b: SliceBounds) -> SliceBounds | None:
    """The box that two boxes share, if there is anything in it.

    >>> overlap(((0, 0), (4, 2)), ((3, 1), (5, 5)))
    ((3, 1), (1, 1))
    """
    begin = tuple(map(max, a[0], b[0]))
    ends = [min(ao + an, bo + bn) for ao, an, bo, bn in zip(*a, *b, strict=True)]
    size = tuple(end - start for start, end in zip(begin, ends, strict=True))
    return (begin, size) if all(n > 0 for n in size) else None


def index_within(bounds: SliceBounds, origin: Sequence[int]) -> tuple[slice, ...]:
    """Where a box lies in a tensor that begins at `origin`, as an index."""
    return tuple(slice(o - base, o - base + n) for o, n, base in zip(*bounds, origin, strict=True))


def tiling_problem(shape: Sequence[int], bounds: Iterable[SliceBounds]) -> str:
    """Why boxes do not make up a tensor of `shape`, each place once; "" where they do."""
    bounds = [box for box in bounds if prod(box[1])]  # a process with nothing to keep has an empty one
    outside = [box for box in bounds if not is_inside(box, shape)]
    if outside:
        return f"the box {outside[0][1]} at {outside[0][0]} is not inside {tuple(shape)}"
    held, needed = sum(prod(size) for _, size in bounds), prod(shape)
    if _any_overlap(bounds):
        return "two pieces hold the same place"
    return "" if held == needed else f"the pieces hold {held} of {needed} numbers"


def _any_overlap(boxes: list[SliceBounds]) -> bool:
    """Sweep along the dimension that is cut most often: only boxes that are open at the same place are compared."""
    if len(boxes) < 2 or not boxes[0][0]:
        return len(boxes) > 1  # a single number has one place
    along = max(range(len(boxes[0][0])), key=lambda d: len({offset[d] for offset, _ in boxes}))
    open_: list[SliceBounds] = []
    for box in sorted(boxes, key=lambda box: box[0][along]):
        open_ = [o for o in open_ if o[0][along] + o[1][along] > box[0][along]]
        if any(intersection(o, box) for o in open_):
            return True
        open_.append(box)
    return False
