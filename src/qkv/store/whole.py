"""What may be written: a network that still holds its weights."""

from torch import nn

from qkv.errors import QkvError


def check_not_quantized(network: nn.Module) -> None:
    """Refuse a network that was quantised for decoding: its linear maps keep an empty weight and a packed one."""
    if any(parameter.numel() == 0 for parameter in network.parameters()):
        raise QkvError(
            "this network was quantised for decoding and no longer holds its weights; "
            "save or export the one that it was made from"
        )
