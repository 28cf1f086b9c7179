"""Weights on disk in int8: a quarter of the size of float32, for models that are distributed.

Each matrix is stored as int8, and a second tensor, `NAME.scale`, has one float32 factor for each of its rows:

    weight[row] = scale[row] · int8[row],   scale[row] = max |weight[row]| / 127

Rounding changes a weight by at most half its row's scale. Other tensors (norms, biases) stay in float32. Reading
multiplies the values by the factors again, so a loaded model has ordinary float32 weights.
"""

from collections.abc import Mapping

import torch
from torch import Tensor

from qkv.errors import QkvError

SCALE_SUFFIX = ".scale"


def quantize_rows(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors as they are stored: each matrix as int8 with its scales, everything else in float32.

    >>> stored = quantize_rows({"w": torch.tensor([[1.0, -0.5], [0.0, 0.0]])})
    >>> stored["w"].tolist(), [round(scale, 5) for scale in stored["w.scale"].tolist()]
    ([[127, -64], [0, 0]], [0.00787, 1.0])
    """
    stored: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        values = tensor.detach().float().cpu()
        if values.dim() != 2:
            stored[name] = values
            continue
        if not bool(values.isfinite().all()):
            raise QkvError(f"{name} has values that are not finite, which int8 cannot store; save the model in float32")
        largest = values.abs().amax(dim=1)
        scale = torch.where(largest > 0, largest / 127, 1.0)
        stored[name] = (values / scale[:, None]).round().clamp(-127, 127).to(torch.int8)
        stored[name + SCALE_SUFFIX] = scale
    return stored


def dequantize_rows(name: str, values: Tensor, scale: Tensor) -> Tensor:
    """A matrix in float32 from its int8 values and the scales of its rows, which must be finite and positive."""
    if not bool((scale.isfinite() & (scale > 0)).all()):
        raise QkvError(f"{name}{SCALE_SUFFIX} has a scale that is not a finite positive number; fetch the file again")
    return values.float() * scale.float()[:, None]
