"""Build a network of any family from a config."""

from collections.abc import Callable

import torch
from torch import nn

from qkv.blocks import initialise
from qkv.errors import UsageError, shorten
from qkv.models.config import Config
from qkv.models.decoder import Decoder
from qkv.models.encoder import Encoder
from qkv.models.network import Network
from qkv.models.runtime import SkipTorchInit
from qkv.models.seq2seq import Seq2Seq

FAMILIES: dict[str, Callable[[Config], Network]] = {"encoder": Encoder, "decoder": Decoder, "seq2seq": Seq2Seq}


def build(config: Config, *, device: torch.device | str = "cpu", dtype: torch.dtype = torch.float32) -> Network:
    """Return a network with new random weights. On `device="meta"` it has only shapes and uses no memory."""
    if not isinstance(config, Config):
        raise UsageError(f"a network is built from a Config or the name of a preset, got {shorten(repr(config))}")
    if torch.device(device).type == "meta":
        with torch.device(device), SkipTorchInit():
            return FAMILIES[config.family](config).to(dtype)
    with torch.device(device):
        network = FAMILIES[config.family](config).to(dtype)
    _initialise(network)
    return network


def _initialise(network: Network) -> None:
    """Sample all weights. A tied matrix is sampled twice: for the head, and then for the embedding, which counts."""
    initialise(network.head, network.output_stack.config)
    for name, stack in reversed(network.stacks.items()):
        for part in (network.embeddings[name], stack):
            initialise(part, stack.config)
    initialise(network.front_ends, network.output_stack.config)


def describe_difference(network: nn.Module, config: Config) -> str:
    """Name the first module in which a network differs from the network that a config builds, or return ""."""
    expected = dict(build(config, device="meta").named_modules(remove_duplicate=False))
    found = dict(network.named_modules(remove_duplicate=False))
    for name in dict.fromkeys((*expected, *found)):
        there, module, where = expected.get(name), found.get(name), name or "the network"
        if there is None or module is None:
            return f"{where} is " + ("not in the network" if module is None else f"an additional {_class(module)}")
        if type(module) is not type(there):
            return f"{where} is {_class(module)}, not {_class(there)}"
        if "forward" in vars(module):
            return f"{where} has a forward function of its own"
        shapes = [{key: tuple(p.shape) for key, p in one.named_parameters(recurse=False)} for one in (module, there)]
        if shapes[0] != shapes[1]:
            return f"{where} has the parameters {shapes[0]}, not {shapes[1]}"
    return ""


def _class(module: nn.Module) -> str:
    return type(module).__qualname__
