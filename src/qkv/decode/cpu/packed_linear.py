"""Linear maps with weights repacked for small batches on a CPU.

Multiplying a few vectors by a matrix takes as long as reading the matrix. Three other memory layouts are read faster
than the default one:

    blocked       oneDNN's own layout: 1.1 to 3.5 times as fast, on one core of an EPYC
    transposed    inputs before outputs, for one vector and many outputs in float32 on one thread: twice as fast
    split         one transposed part of the outputs for each thread, for one vector in float32 on several threads

A repacked matrix is a second copy of the weights. So a matrix is repacked only when a layout is first used, up to
`MAX_PACKED_BYTES` in total, and again when the weights have changed. The result equals `F.linear`, except for the
order of sums.

M vectors, I inputs, O outputs
"""

from abc import abstractmethod
from collections.abc import Callable
from typing import Literal, NamedTuple
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.nn import functional as F

MAX_PACKED_BYTES = 2**30
"""The largest total size of repacked weights, over all networks."""
MIN_PACKED_NUMEL = 2**17
"""Smaller matrices are not repacked. They stay in the processor's cache, where `F.linear` has the least overhead."""
MIN_KERNEL_ROWS = 4
"""Fewer vectors are padded to this number, because oneDNN's kernel for it is faster, in spite of the padding."""
WeightLayout = Literal["blocked", "transposed", "split"]
WeightFingerprint = tuple[int, int, float]


class PackedWeights(NamedTuple):
    """A matrix in other layouts, and the fingerprint of the original weights."""

    fingerprint: WeightFingerprint
    layouts: dict[WeightLayout, Tensor]


_PACKED: WeakKeyDictionary[nn.Linear, PackedWeights] = WeakKeyDictionary()


class QuantizedLinear(nn.Module):
    """Base of linear maps with quantized weights. They are immutable, so that copies of a network can share them."""

    @property
    @abstractmethod
    def packed_bytes(self) -> int:
        """The bytes of everything that the weights were packed into. None of it is a parameter."""

    @abstractmethod
    def add_to(self, residual: Tensor, x: Tensor) -> Tensor:
        """Return residual + self(x), in one pass over the memory if the kernel allows it."""

    def extra_repr(self) -> str:
        """The sizes, for the module's `repr`."""
        return f"in_features={self.in_features}, out_features={self.out_features}"

    def __deepcopy__(self, memo: dict[int, object]) -> "QuantizedLinear":
        return self


def make_packed_linear(linear: nn.Linear) -> Callable[[Tensor], Tensor]:
    """Return the function y = x Wᵀ + b for x (M, I). It repacks W when it first needs a layout."""
    weight, bias = linear.weight, linear.bias
    if weight.numel() < MIN_PACKED_NUMEL or not _can_pack(weight):
        return lambda x: F.linear(x, weight, bias)
    single_vector_layout = best_layout(1, weight)
    packed: dict[WeightLayout, Tensor | None] = {}
    version = weight._version  # the version of the weights in `packed`

    def apply(x: Tensor) -> Tensor:
        nonlocal version
        rows = x.shape[0]
        layout: WeightLayout = "blocked" if rows > 1 else single_vector_layout
        if version != weight._version:
            packed.clear()
            version = weight._version
        if layout not in packed:
            packed[layout] = packed_weight(linear, layout)
        matrix = packed[layout]
        if matrix is None:
            return F.linear(x, weight, bias)
        if layout == "transposed":
            return torch.mm(x, matrix) if bias is None else torch.addmm(bias, x, matrix)
        if layout == "split":  # torch gives each thread one product of the batch
            parts = x.expand(len(matrix), 1, -1)
            if bias is None:
                return torch.bmm(parts, matrix).view(1, -1)
            return torch.baddbmm(bias.view(len(matrix), 1, -1), parts, matrix).view(1, -1)
        if rows < MIN_KERNEL_ROWS:
            x = F.pad(x, (0, 0, 0, MIN_KERNEL_ROWS - rows))
        out: Tensor = torch.ops.mkldnn._linear_pointwise(x, matrix, bias, "none", [], "")
        return out if rows == x.shape[0] else out[:rows]

    return apply


def best_layout(rows: int, weight: Tensor) -> WeightLayout:
    """Return the layout in which W (O, I) is read fastest for this number of vectors.

    torch multiplies one vector by a transposed matrix on one thread, so several threads need several matrices.
    """
    (outputs, inputs), threads = weight.shape, torch.get_num_threads()
    if rows > 1 or weight.dtype != torch.float32:
        return "blocked"
    if threads > 1:
        return "split" if outputs % threads == 0 else "blocked"
    return "transposed" if outputs >= 2 * inputs else "blocked"


def packed_weight(linear: nn.Linear, layout: WeightLayout) -> Tensor | None:
    """Return the weights in a layout, or None if torch cannot make it or the size limit is reached."""
    weight = linear.weight
    fingerprint, packed = _fingerprint(weight), _PACKED.get(linear)
    if packed is None or packed.fingerprint != fingerprint:
        packed = _PACKED[linear] = PackedWeights(fingerprint, {})
    if layout in packed.layouts:
        return packed.layouts[layout]
    matrices = [matrix for other in _PACKED.values() for matrix in other.layouts.values()]
    if sum(tensor.numel() * tensor.dtype.itemsize for tensor in (weight, *matrices)) > MAX_PACKED_BYTES:
        return None
    if layout == "transposed":
        packed.layouts[layout] = weight.detach().t().contiguous()
    elif layout == "split":
        parts = weight.detach().unflatten(0, (torch.get_num_threads(), -1))
        packed.layouts[layout] = parts.transpose(1, 2).contiguous()
    else:
        try:
            packed.layouts[layout] = torch.ops.mkldnn._reorder_linear_weight(weight.detach(), 16)
        except (RuntimeError, AttributeError):  # a version of torch without these operators
            return None
    return packed.layouts[layout]


def _can_pack(weight: Tensor) -> bool:
    """Return whether oneDNN can repack these weights, and torch keeps a version counter for them."""
    if not (torch.backends.mkldnn.is_available() and torch.backends.mkldnn.enabled):
        return False
    has_dtype = weight.dtype == torch.float32 or (weight.dtype == torch.bfloat16 and _has_bfloat16_kernels())
    return has_dtype and weight.device.type == "cpu" and not weight.is_inference()


def _has_bfloat16_kernels() -> bool:
    """Return whether oneDNN has bfloat16 kernels for this CPU."""
    try:
        return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
    except (RuntimeError, AttributeError):  # a version of torch without this operator
        return False


def _fingerprint(weight: Tensor) -> WeightFingerprint:
    """Return values that change with the weights (O, I): their address, torch's version counter, and a partial sum.

    The sum detects most changes through `.data`, which torch does not count. It adds up one weight of each row, along a
    diagonal that continues at the first column after the last.
    """
    rows = torch.arange(len(weight))
    diagonal = weight.detach()[rows, rows % weight.shape[1]]
    return weight.data_ptr(), weight._version, float(diagonal.sum(dtype=torch.float64))
