"""int8 weights on a GPU: half of bfloat16's memory to read, which is what a step of one row waits for.

    w ≈ scale[o] · round(w / scale[o])           each output has a scale of its own, chosen once

Only the weights are in int8; inputs, outputs and sums stay as they are. Compiled steps of one row read the whole
numbers straight into the sum. Other steps turn them back first, which costs more than it saves: it is a choice for one
text at a time, with `compiled=True`.

I inputs, O outputs
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from qkv.decode.gpu.matvec_linear import AnyNetwork, is_single_vector, replace_linears
from qkv.errors import QkvError

LIMIT = 127


def quantise_weights(network: AnyNetwork) -> AnyNetwork:
    """A copy of a network for decoding one text at a time, its linear maps' weights in int8; the original stays.

    It cannot be trained, saved or exported: keep the original for those.
    """
    if any(isinstance(module, Int8Weight) for module in network.modules()):
        raise QkvError("this network's linear maps are in int8 already")
    twin = replace_linears(network, Int8Weight, share=False)
    for parameter in twin.parameters():
        parameter.requires_grad_(False)
    twin.eval()
    return twin


class Int8Weight(nn.Module):
    """y = x Wᵀ + b with W in int8; x and y in the type that the weights had."""

    whole: Tensor
    scale: Tensor
    shift: Tensor | None

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.in_features, self.out_features = linear.in_features, linear.out_features
        whole, scale = to_int8(linear.weight.detach())
        self.register_buffer("whole", whole)
        self.register_buffer("scale", scale)
        self.register_buffer("shift", None if linear.bias is None else linear.bias.detach())
        # Empty, for whoever asks a linear map for its type and device.
        self.weight = nn.Parameter(linear.weight.detach().new_empty(0), requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        """(…, I) → (…, O)."""
        if is_single_vector(x):
            y = (self.whole * x.reshape(-1)).sum(-1).view(*x.shape[:-1], -1)
        else:
            y = F.linear(x, self.whole.to(x.dtype))
        y = y * self.scale
        return (y if self.shift is None else y + self.shift).to(x.dtype)

    def extra_repr(self) -> str:
        return f"in_features={self.in_features}, out_features={self.out_features}"


def to_int8(weight: Tensor) -> tuple[Tensor, Tensor]:
    """(O, I) → whole numbers (O, I) and a scale for each output (O,), in float32 or better: weight ≈ scale · whole.

    >>> to_int8(torch.tensor([[1.0, -0.5], [0.0, 0.0]]))[0].tolist()
    [[127, -64], [0, 0]]
    """
    exact = weight.to(torch.promote_types(weight.dtype, torch.float32))
    largest = exact.abs().amax(dim=1)
    scale = torch.where(largest > 0, largest, 1.0) / LIMIT
    return (exact / scale[:, None]).round().to(torch.int8), scale
