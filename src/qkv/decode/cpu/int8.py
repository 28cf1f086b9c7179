"""Linear maps with int8 weights on a CPU. `quantize.py` makes a network of them.

    w ≈ scale[o] · round(w / scale[o])                       each output has its own scale, computed once
    x ≈ scale_x · (q − zero), q = round(x / scale_x) + zero  all inputs of a call share one ("dynamic")

The matrix product runs on integers. It reads a quarter of the memory and, with VNNI instructions, has four times the
operations per second.
Embeddings, norms, attention and residual sums stay in float32. The kernels are torch's FBGEMM kernels for x86.

I inputs, O outputs
"""

import warnings

import torch
from torch import Tensor, nn

from qkv.decode.cpu.packed_linear import QuantizedLinear
from qkv.errors import QkvError


class Int8Linear(QuantizedLinear):
    """y = x Wᵀ + b with W in int8, in a layout for this machine's kernel. x and y are float32."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.in_features, self.out_features = linear.in_features, linear.out_features
        weight, self.scale = to_int8(linear.weight.detach().float())
        bias = torch.zeros(self.out_features) if linear.bias is None else linear.bias.detach().float()
        self.scaled_bias = bias / self.scale
        self.weight_sums = weight.sum(1, dtype=torch.int32)  # (O,); with them the kernel corrects for x's zero point
        self.weight_shape = weight[:1, :1].expand_as(weight)  # the kernel reads only its shape
        # Other code reads the dtype and the device of a linear map from this empty tensor.
        self.weight = nn.Parameter(torch.empty(0), requires_grad=False)
        with warnings.catch_warnings():  # torch deprecates these kernels but has no replacement
            warnings.simplefilter("ignore")
            try:
                self.packed_weight = torch.fbgemm_pack_quantized_matrix(weight)
                self(torch.zeros(1, self.in_features))
            except (AttributeError, RuntimeError) as error:
                reason = str(error).splitlines()[0]
                raise QkvError(f"torch has no int8 kernels on this machine ({reason}); decode in float32") from error

    def forward(self, x: Tensor) -> Tensor:
        """(…, I) → (…, O)."""
        return self.unscaled_output(x).mul_(self.scale)

    def add_to(self, residual: Tensor, x: Tensor) -> Tensor:
        """Return residual + self(x), in one pass over the memory."""
        return torch.addcmul(residual, self.unscaled_output(x), self.scale)

    def unscaled_output(self, x: Tensor) -> Tensor:
        """Return the output divided by `scale`.

        The kernel takes one scale for all outputs. It is given 1, and the callers multiply by `scale`.
        """
        return torch.fbgemm_linear_int8_weight_fp32_activation(
            x, self.weight_shape, self.packed_weight, self.weight_sums, 1.0, 0, self.scaled_bias
        )

    @property
    def packed_bytes(self) -> int:
        """The bytes of the packed weights, which are not a parameter, and of scale, bias and weight sum per output."""
        return self.in_features * self.out_features + 12 * self.out_features


def to_int8(weight: Tensor) -> tuple[Tensor, Tensor]:
    """Quantize a weight (O, I) to int8 with one scale per output (O,), so that weight ≈ scale · int8.

    >>> to_int8(torch.tensor([[1.0, -0.5], [0.0, 0.0]]))[0].tolist()[1]
    [0, 0]
    """
    limit = 127 if _has_vnni() else 63
    largest = weight.abs().amax(dim=1)
    scale = torch.where(largest > 0, largest, 1.0) / limit
    return (weight / scale[:, None]).round().to(torch.int8), scale


def _has_vnni() -> bool:
    """Return whether the CPU has VNNI. Without it, products are summed in 16 bits, where 2 · 255 · 127 overflows."""
    capabilities = torch.cpu.get_capabilities()
    return bool(capabilities.get("avx512_vnni") or capabilities.get("avx_vnni"))
