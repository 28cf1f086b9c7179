"""Weights of linear maps laid out anew for the products of few rows on a CPU.

A product of a few rows with a matrix is all reading, and the order in which a matrix lies in memory is not the one in
which it is best read:

    blocks    oneDNN's own layout: 1.1 to 3.5 times as fast as the matrix as it is, on one core of an EPYC
    turned    inputs before outputs, for one row and many outputs: twice as fast

It costs a second copy of the weights, so it is done when a layout is first used, up to `LIMIT`, and again when the
weights have changed. What it gives is what `F.linear` gives, up to the order of sums.

M rows, I inputs, O outputs
"""

from collections.abc import Callable
from typing import Literal, NamedTuple
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.nn import functional as F

MAX_PACKED_BYTES = 2**30
"""How many bytes of weights are held in other layouts at once, over all networks."""
MIN_PACKED_NUMEL = 2**17
"""Numbers in a matrix that lies in the processor's cache anyway: there the plain product has the least to prepare."""
MIN_KERNEL_ROWS = 4
"""Fewer rows are filled up to so many: oneDNN has a better kernel for them, which is faster even so."""
WeightLayout = Literal["blocks", "turned"]
WeightFingerprint = tuple[int, int, float]


class PackedWeights(NamedTuple):
    """A matrix in other layouts, and what they were made from."""

    fingerprint: WeightFingerprint
    layouts: dict[WeightLayout, Tensor]


_PACKED: WeakKeyDictionary[nn.Linear, PackedWeights] = WeakKeyDictionary()


def make_packed_linear(linear: nn.Linear) -> Callable[[Tensor], Tensor]:
    """y = x Wᵀ + b for x (M, I), which lays W out anew when it first pays."""
    weight, bias = linear.weight, linear.bias
    if weight.numel() < MIN_PACKED_NUMEL or not _can_pack(weight):
        return lambda x: F.linear(x, weight, bias)
    alone = best_layout(1, weight)
    found: dict[WeightLayout, Tensor | None] = {}
    version = weight._version  # of the weights that were found

    def apply(x: Tensor) -> Tensor:
        nonlocal version
        rows = x.shape[0]
        layout: WeightLayout = "blocks" if rows > 1 else alone
        if version != weight._version:
            found.clear()
            version = weight._version
        if layout not in found:
            found[layout] = packed_weight(linear, layout)
        laid = found[layout]
        if laid is None:
            return F.linear(x, weight, bias)
        if layout == "turned":
            return torch.mm(x, laid) if bias is None else torch.addmm(bias, x, laid)
        if rows < MIN_KERNEL_ROWS:
            x = F.pad(x, (0, 0, 0, MIN_KERNEL_ROWS - rows))
        out: Tensor = torch.ops.mkldnn._linear_pointwise(x, laid, bias, "none", [], "")
        return out if rows == x.shape[0] else out[:rows]

    return apply


def best_layout(rows: int, weight: Tensor) -> WeightLayout:
    """The layout in which W (O, I) is read fastest for so many rows."""
    outputs, inputs = weight.shape
    return "turned" if rows == 1 and outputs >= 2 * inputs else "blocks"


def packed_weight(linear: nn.Linear, layout: WeightLayout) -> Tensor | None:
    """The weights in a layout; None where this torch cannot do it, or too many are held."""
    weight = linear.weight
    stamp, held = _fingerprint(weight), _PACKED.get(linear)
    if held is None or held.fingerprint != stamp:
        held = _PACKED[linear] = PackedWeights(stamp, {})
    if layout in held.layouts:
        return held.layouts[layout]
    numbers = sum(one.numel() for other in _PACKED.values() for one in other.layouts.values())
    if 4 * (numbers + weight.numel()) > MAX_PACKED_BYTES:
        return None
    if layout == "turned":
        made = weight.detach().t().contiguous()
    else:
        try:
            made = torch.ops.mkldnn._reorder_linear_weight(weight.detach(), 16)
        except (RuntimeError, AttributeError):  # a torch whose operators are not these
            return None
    held.layouts[layout] = made
    return made


def _can_pack(weight: Tensor) -> bool:
    """Whether these are weights that oneDNN lays out anew, and that tell when they change."""
    there = torch.backends.mkldnn.is_available() and torch.backends.mkldnn.enabled
    return bool(there) and weight.dtype == torch.float32 and weight.device.type == "cpu" and not weight.is_inference()


def _fingerprint(weight: Tensor) -> WeightFingerprint:
    """What changes when the weights (O, I) do: where they lie, torch's count of changes, and a number of each output.

    The numbers are for changes that torch does not count, those through `.data`: they stand on diagonals, so that
    whoever replaces a matrix, some of its rows or (where O ≥ I) some of its columns is seen.
    """
    diagonals = weight.detach().flatten()[:: weight.shape[1] + 1]
    return weight.data_ptr(), weight._version, float(diagonals.sum(dtype=torch.float64))
