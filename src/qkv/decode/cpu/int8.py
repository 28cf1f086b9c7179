"""int8 on the CPU: the same network with the weights of every linear map quantized to int8.

    w ≈ scale[o] · round(w / scale[o])           each output has its own scale, computed once
    x ≈ step · (round(x / step) − zero)          the inputs of a call have one scale, computed at run time ("dynamic")

The product runs on integers: a quarter of the memory to read and, with VNNI instructions, four times the FLOP/s.
Embeddings, norms, attention and sums stay in float32. The kernels are torch's FBGEMM kernels (x86).

I inputs, O outputs
"""

import copy
import warnings
from typing import TypeVar

import torch
from torch import Tensor, nn

from qkv.errors import QkvError
from qkv.models import Decoder, Encoder, Seq2Seq

AnyNetwork = TypeVar("AnyNetwork", Encoder, Decoder, Seq2Seq)


def quantize(network: AnyNetwork) -> AnyNetwork:
    """A copy of a network for decoding on the CPU, with linear maps in int8; the original is not changed.

    The copy cannot be trained, saved or exported: keep the original for those.
    """
    devices = {parameter.device.type for parameter in network.parameters()}
    if devices != {"cpu"}:
        where = ", ".join(sorted(devices))
        raise QkvError(f'int8 decoding runs on a CPU only, and this network is on {where}; load it with device="cpu"')
    if any(isinstance(module, Int8Linear) for module in network.modules()):
        raise QkvError("this network is quantized to int8 already")
    # A deep copy whose memo already holds an int8 map for each linear map.
    linears = {id(module): Int8Linear(module) for module in network.modules() if isinstance(module, nn.Linear)}
    twin: AnyNetwork = copy.deepcopy(network, memo=dict(linears))
    for parameter in twin.parameters():
        parameter.data = parameter.data.float()
        parameter.requires_grad_(False)
    twin.eval()
    return twin


class Int8Linear(nn.Module):
    """y = x Wᵀ + b with W in int8, packed once for this machine; x and y are float32."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.in_features, self.out_features = linear.in_features, linear.out_features
        whole, self.scale = to_int8(linear.weight.detach().float())
        bias = torch.zeros(self.out_features) if linear.bias is None else linear.bias.detach().float()
        self.scaled_bias = bias / self.scale
        self.weight_sums = whole.sum(1, dtype=torch.int32)  # of each output's weights: corrects for the zero point of x
        self.weight_shape = whole[:1, :1].expand_as(whole)  # the kernel reads only the shape of it
        # Empty, for code that reads the dtype and device of a linear map.
        self.weight = nn.Parameter(torch.empty(0), requires_grad=False)
        with warnings.catch_warnings():  # torch deprecates these kernels, and has no replacement yet
            warnings.simplefilter("ignore")
            try:
                self.packed_weight = torch.fbgemm_pack_quantized_matrix(whole)
                self(torch.zeros(1, self.in_features))
            except (AttributeError, RuntimeError) as error:
                reason = str(error).splitlines()[0]
                raise QkvError(f"torch has no int8 kernels on this machine ({reason}); decode in float32") from error

    def __deepcopy__(self, memo: dict[int, object]) -> "Int8Linear":
        return self  # it is immutable

    def forward(self, x: Tensor) -> Tensor:
        """(…, I) → (…, O)."""
        return self.unscaled(x).mul_(self.scale)

    def add_to(self, residual: Tensor, x: Tensor) -> Tensor:
        """residual + self(x), in one pass."""
        return torch.addcmul(residual, self.unscaled(x), self.scale)

    def unscaled(self, x: Tensor) -> Tensor:
        """The product before the scale of each output: the kernel supports one scale for all outputs, and gets 1."""
        return torch.fbgemm_linear_int8_weight_fp32_activation(
            x, self.weight_shape, self.packed_weight, self.weight_sums, 1.0, 0, self.scaled_bias
        )

    def extra_repr(self) -> str:
        """The sizes, for the module's `repr`."""
        return f"in_features={self.in_features}, out_features={self.out_features}"


def to_int8(weight: Tensor) -> tuple[Tensor, Tensor]:
    """(O, I) → int8 (O, I) and a scale for each output (O,): weight ≈ scale · int8.

    >>> to_int8(torch.tensor([[1.0, -0.5], [0.0, 0.0]]))[0].tolist()[1]
    [0, 0]
    """
    limit = 127 if _has_vnni() else 63
    largest = weight.abs().amax(dim=1)
    scale = torch.where(largest > 0, largest, 1.0) / limit
    return (weight / scale[:, None]).round().to(torch.int8), scale


def _has_vnni() -> bool:
    """Whether sums are 32 bits wide. Without VNNI, pairs are summed in 16 bits, where 2 · 255 · 127 overflows."""
    known = torch.cpu.get_capabilities()
    return bool(known.get("avx512_vnni") or known.get("avx_vnni"))
