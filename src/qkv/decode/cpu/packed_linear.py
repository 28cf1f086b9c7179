"""Linear maps with weights repacked for small batches on a CPU.

The product of a few vectors with a matrix is bound by reading the matrix, and the default memory layout is not the one
that is read fastest:

    blocked       oneDNN's own layout: 1.1 to 3.5 times as fast, on one core of an EPYC
    transposed    inputs before outputs, for one vector and many outputs: twice as fast

This takes a second copy of the weights. So a matrix is repacked when a layout is first used, up to `MAX_PACKED_BYTES`,
and again when the weights have changed. The result is that of `F.linear`, up to the order of sums.

M vectors, I inputs, O outputs
"""

from collections.abc import Callable
from typing import Literal, NamedTuple
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.nn import functional as F

MAX_PACKED_BYTES = 2**30
"""Total size of repacked weights, over all networks."""
MIN_PACKED_NUMEL = 2**17
"""Smaller matrices stay in the processor's cache, where the plain product has the least overhead."""
MIN_KERNEL_ROWS = 4
"""Fewer vectors are padded to this number: oneDNN has a better kernel for it, which is faster even so."""
WeightLayout = Literal["blocked", "transposed"]
WeightFingerprint = tuple[int, int, float]


class PackedWeights(NamedTuple):
    """A matrix in other layouts, and the fingerprint of the weights that they were made from."""

    fingerprint: WeightFingerprint
    layouts: dict[WeightLayout, Tensor]


_PACKED: WeakKeyDictionary[nn.Linear, PackedWeights] = WeakKeyDictionary()


def make_packed_linear(linear: nn.Linear) -> Callable[[Tensor], Tensor]:
    """y = x Wᵀ + b for x (M, I), which repacks W when that first pays off."""
    weight, bias = linear.weight, linear.bias
    if weight.numel() < MIN_PACKED_NUMEL or not _can_pack(weight):
        return lambda x: F.linear(x, weight, bias)
    alone = best_layout(1, weight)
    found: dict[WeightLayout, Tensor | None] = {}
    version = weight._version  # of the weights that were repacked

    def apply(x: Tensor) -> Tensor:
        nonlocal version
        rows = x.shape[0]
        layout: WeightLayout = "blocked" if rows > 1 else alone
        if version != weight._version:
            found.clear()
            version = weight._version
        if layout not in found:
            found[layout] = packed_weight(linear, layout)
        laid = found[layout]
        if laid is None:
            return F.linear(x, weight, bias)
        if layout == "transposed":
            return torch.mm(x, laid) if bias is None else torch.addmm(bias, x, laid)
        if rows < MIN_KERNEL_ROWS:
            x = F.pad(x, (0, 0, 0, MIN_KERNEL_ROWS - rows))
        out: Tensor = torch.ops.mkldnn._linear_pointwise(x, laid, bias, "none", [], "")
        return out if rows == x.shape[0] else out[:rows]

    return apply


def best_layout(rows: int, weight: Tensor) -> WeightLayout:
    """The layout in which W (O, I) is read fastest for this number of vectors."""
    outputs, inputs = weight.shape
    return "transposed" if rows == 1 and outputs >= 2 * inputs else "blocked"


def packed_weight(linear: nn.Linear, layout: WeightLayout) -> Tensor | None:
    """The weights in a layout; None if this version of torch cannot make it, or if the size limit is reached."""
    weight = linear.weight
    stamp, held = _fingerprint(weight), _PACKED.get(linear)
    if held is None or held.fingerprint != stamp:
        held = _PACKED[linear] = PackedWeights(stamp, {})
    if layout in held.layouts:
        return held.layouts[layout]
    numbers = sum(one.numel() for other in _PACKED.values() for one in other.layouts.values())
    if 4 * (numbers + weight.numel()) > MAX_PACKED_BYTES:
        return None
    if layout == "transposed":
        made = weight.detach().t().contiguous()
    else:
        try:
            made = torch.ops.mkldnn._reorder_linear_weight(weight.detach(), 16)
        except (RuntimeError, AttributeError):  # a version of torch without these operators
            return None
    held.layouts[layout] = made
    return made


def _can_pack(weight: Tensor) -> bool:
    """Whether oneDNN can repack these weights, and torch counts their changes."""
    there = torch.backends.mkldnn.is_available() and torch.backends.mkldnn.enabled
    return bool(there) and weight.dtype == torch.float32 and weight.device.type == "cpu" and not weight.is_inference()


def _fingerprint(weight: Tensor) -> WeightFingerprint:
    """What changes when the weights (O, I) do: their address, torch's version counter, and a sum of some weights.

    The sum detects changes that torch does not count, those through `.data`. It runs over diagonals, so that it notices
    a change of the matrix, of some of its rows or (if O ≥ I) of some of its columns.
    """
    diagonals = weight.detach().flatten()[:: weight.shape[1] + 1]
    return weight.data_ptr(), weight._version, float(diagonals.sum(dtype=torch.float64))
