"""Linear maps with int4 weights on a CPU. `quantize.py` makes a network of them.

    w ≈ scale · (q − 8) + zero,  q = 0 … 15          each group of 32 inputs of an output has its own scale and zero

Scale and zero are bfloat16, so a weight takes 5 bits in all. They are chosen to minimise the squared error of the group
(`to_int4`). The kernel is torch's: it reads the packed weights, multiplies them by inputs that are rounded to bfloat16,
and sums in float32. Its outputs are rounded to bfloat16 again.

I inputs, O outputs, G = I / 32 groups
"""

from typing import NamedTuple

import torch
from torch import Tensor, nn

from qkv.decode.cpu.packed_linear import QuantizedLinear
from qkv.errors import QkvError

GROUP_SIZE = 32
"""The number of inputs that share a scale. The kernel allows 32, 64, 128 and 256."""
OUTPUT_MULTIPLE = 16
"""The kernel needs a multiple of 16 outputs. Other matrices are padded with zeros."""
REFINEMENTS = 2
"""The number of times that scale and zero are fitted to the rounded weights, and the weights rounded again."""
MAX_ROWS_NUMEL = 2**22
"""Larger matrices are quantized a part at a time, so that the working memory stays small."""


class Int4Weights(NamedTuple):
    """A quantized matrix: weight ≈ scale · (codes − 8) + zero."""

    codes: Tensor  # (O, I), integers from 0 to 15
    scale: Tensor  # (O, G), bfloat16
    zero: Tensor  # (O, G), bfloat16

    def dequantize(self) -> Tensor:
        """Return the weights (O, I) that the codes stand for, in float32."""
        groups = self.codes.view(*self.scale.shape, GROUP_SIZE)
        return ((groups - 8.0) * self.scale.float()[..., None] + self.zero.float()[..., None]).flatten(1)


class Int4Linear(QuantizedLinear):
    """y = x Wᵀ + b with W in int4, in a layout for this machine's kernel. y has the dtype of x."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        assert fits_int4(linear), "the number of inputs must be a multiple of GROUP_SIZE"
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self.bias = None if linear.bias is None else linear.bias.detach().float()
        weight = linear.weight.detach().float()
        padding = -self.out_features % OUTPUT_MULTIPLE
        weights = to_int4(nn.functional.pad(weight, (0, 0, 0, padding)) if padding else weight)
        self.scale_zero = torch.stack([weights.scale.t(), weights.zero.t()], dim=2).contiguous()  # (G, O, 2)
        # Other code reads the dtype and the device of a linear map from this empty tensor.
        self.weight = nn.Parameter(torch.empty(0), requires_grad=False)
        try:
            self.packed_weight = torch.ops.aten._convert_weight_to_int4pack_for_cpu(weights.codes, 1)
            self(torch.zeros(1, self.in_features))
        except (AttributeError, RuntimeError) as error:
            reason = str(error).splitlines()[0]
            raise QkvError(f"torch has no int4 kernels on this machine ({reason}); use int8 or float32") from error

    def forward(self, x: Tensor) -> Tensor:
        """(…, I) → (…, O)."""
        out = self.rounded_output(x.reshape(-1, self.in_features)).to(x.dtype)
        return out.view(*x.shape[:-1], self.out_features)

    def add_to(self, residual: Tensor, x: Tensor) -> Tensor:
        """Return residual + self(x) for x (M, I)."""
        return residual + self.rounded_output(x)

    def rounded_output(self, x: Tensor) -> Tensor:
        """Return the output for x (M, I) in bfloat16, or in float32 if there is a bias."""
        out: Tensor = torch.ops.aten._weight_int4pack_mm_for_cpu(
            x.bfloat16(), self.packed_weight, GROUP_SIZE, self.scale_zero
        )
        if out.shape[1] != self.out_features:
            out = out[:, : self.out_features].contiguous()
        return out if self.bias is None else out + self.bias

    @property
    def packed_bytes(self) -> int:
        """The bytes of the packed weights, their scales and zeros, and the bias. None of them is a parameter."""
        tensors = [self.packed_weight, self.scale_zero, *([] if self.bias is None else [self.bias])]
        return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def fits_int4(linear: nn.Linear) -> bool:
    """Return whether the inputs of a linear map form whole groups."""
    return linear.in_features % GROUP_SIZE == 0


def to_int4(weight: Tensor) -> Int4Weights:
    """Quantize a weight (O, I) with a scale and a zero for each group that keep its squared error small.

    The search starts from the range of the group. In each step it rounds the weights to codes, fits scale and zero to
    the codes by least squares, and keeps them if the error has become smaller.
    """
    rows = max(1, MAX_ROWS_NUMEL // weight.shape[1])
    parts = [_quantize_rows(part) for part in weight.split(rows)]
    return Int4Weights(*(torch.cat(tensors) for tensors in zip(*parts, strict=True)))


def _quantize_rows(weight: Tensor) -> Int4Weights:
    groups = weight.reshape(len(weight), -1, GROUP_SIZE)
    low, high, mean = groups.amin(-1, keepdim=True), groups.amax(-1, keepdim=True), groups.mean(-1, keepdim=True)
    scale = (high - low) / 15
    zero = (low + high + scale) / 2  # codes 0 and 15 are then at both ends of the range
    best_error = torch.full_like(low, float("inf"))
    best_scale, best_zero = scale, zero
    for _ in range(REFINEMENTS + 1):
        scale, zero = (t.bfloat16().float() for t in (scale, zero))  # the precision that the kernel reads
        centred = _round_codes(groups, scale, zero) - 8
        error = (centred * scale + zero - groups).square().sum(-1, keepdim=True)
        better = error < best_error
        best_error = torch.where(better, error, best_error)
        best_scale, best_zero = torch.where(better, scale, best_scale), torch.where(better, zero, best_zero)
        # The least-squares line through the pairs (code, weight) of the group.
        code_mean = centred.mean(-1, keepdim=True)
        spread = (centred - code_mean).square().sum(-1, keepdim=True)
        covariance = ((centred - code_mean) * (groups - mean)).sum(-1, keepdim=True)
        scale = torch.where(spread > 0, covariance / spread, scale)
        zero = mean - scale * code_mean
    codes = _round_codes(groups, best_scale, best_zero).to(torch.int32).flatten(1)
    return Int4Weights(codes, best_scale[..., 0].bfloat16(), best_zero[..., 0].bfloat16())


def _round_codes(groups: Tensor, scale: Tensor, zero: Tensor) -> Tensor:
    """Return the nearest codes. A group of equal weights has scale 0, and its codes do not matter."""
    return ((groups - zero) / torch.where(scale == 0, 1.0, scale) + 8).round().clamp(0, 15)
