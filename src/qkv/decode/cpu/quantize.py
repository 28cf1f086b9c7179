"""Copies of a network for decoding on a CPU, with the weights of the linear maps in int8 or int4.

Embeddings, norms, attention and residual sums stay in float32. With "int4", the output matrix of the head is int8: its
outputs are the logits, which the int4 kernel would round to 8 bits. So is every matrix whose number of inputs is not a
multiple of 32. Linear maps of another class than `nn.Linear`, and those with hooks, stay as they are.
"""

import copy
from typing import Literal, TypeVar, get_args

import torch
from torch import nn

from qkv.decode.cpu.int4 import GROUP_SIZE, Int4Linear, fits_int4
from qkv.decode.cpu.int8 import Int8Linear
from qkv.decode.cpu.packed_linear import QuantizedLinear
from qkv.decode.support import is_patched
from qkv.errors import QkvError, UsageError, suggest_name
from qkv.models import Network

AnyNetwork = TypeVar("AnyNetwork", bound=Network)
WeightPrecision = Literal["int8", "int4"]


def quantize(network: AnyNetwork, precision: WeightPrecision = "int8") -> AnyNetwork:
    """Return a copy of a network for decoding on a CPU, with quantized linear maps. The original does not change.

    The copy cannot be trained, saved or exported. Use the original for that.
    """
    if precision not in get_args(WeightPrecision):
        raise UsageError(f"precision={precision!r}: {suggest_name(str(precision), get_args(WeightPrecision))}")
    if not network.config.has_blocks:
        layers = network.config.stack.block.upper()
        raise QkvError(f"{precision} is for Transformers, and this model has {layers} layers; run it without it")
    devices = {parameter.device.type for parameter in network.parameters()}
    if devices != {"cpu"}:
        names = ", ".join(sorted(devices))
        raise QkvError(
            f'{precision} decoding runs on a CPU only, and this network is on {names}; load it with device="cpu"'
        )
    if any(isinstance(module, QuantizedLinear) for module in network.modules()):
        raise QkvError("this network is quantized already, and its original weights are gone; use it as it is")
    in_int4 = set() if precision == "int8" else {id(linear) for linear in _int4_linears(network)}
    # deepcopy takes the copies of the linear maps from the memo, so that it does not copy their weights.
    with torch.no_grad():
        linears = {
            id(module): Int4Linear(module) if id(module) in in_int4 else Int8Linear(module)
            for module in _linears(network)
        }
    quantized: AnyNetwork = copy.deepcopy(network, memo=dict(linears))
    for parameter in quantized.parameters():
        parameter.data = parameter.data.float()
        parameter.requires_grad_(False)
    quantized.eval()
    return quantized


def int8_note(network: Network) -> str | None:
    """Return a sentence about the matrices that "int4" leaves in int8 because of their shape, or None."""
    linears = [linear for linear in _linears(network) if linear is not network.head.out]
    num_left = sum(not fits_int4(linear) for linear in linears)
    if not num_left:
        return None
    return (
        f"{num_left} of {len(linears)} matrices stay in int8, because their number of inputs is not a multiple of "
        f"{GROUP_SIZE}"
    )


def _int4_linears(network: Network) -> list[nn.Linear]:
    """Return the linear maps whose weights "int4" packs into 4 bits."""
    return [linear for linear in _linears(network) if linear is not network.head.out and fits_int4(linear)]


def _linears(network: Network) -> list[nn.Linear]:
    """Return the linear maps that a quantized one can replace. A subclass may compute something else."""
    return [module for module in network.modules() if type(module) is nn.Linear and not is_patched(module)]
