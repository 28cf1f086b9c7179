"""The three families of models, and the function that builds a network of any family from a config."""

from collections.abc import Callable
from contextlib import nullcontext
from types import BuiltinFunctionType, FunctionType
from typing import Any

import torch
from torch import nn

from qkv.blocks import Embedding, Head, initialise, make_stack
from qkv.errors import QkvError, UsageError, shorten
from qkv.models.config import Config
from qkv.models.network import Network
from qkv.models.runtime import SkipTorchInit, mark_uninitialised
from qkv.plugins import find_plugins


class Decoder(Network):
    """Decoder-only (GPT): inputs → embedding → causal stack → head.

    Every token attends to itself and to the tokens before it. Trained to predict the next token.
    """

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        assert config.decoder is not None
        self.embedding = Embedding(config.decoder)
        self.decoder = make_stack(config.decoder, name="decoder", causal=True)
        self.head = Head(config.head, config.decoder, self.embedding.token)


class Encoder(Network):
    """Encoder-only (BERT): inputs → embedding → stack → head.

    Every token attends to all tokens. Pretrained by predicting masked tokens.
    """

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        assert config.encoder is not None
        self.embedding = Embedding(config.encoder)
        self.encoder = make_stack(config.encoder, name="encoder", causal=False)
        self.head = Head(config.head, config.encoder, self.embedding.token)


class Seq2Seq(Network):
    """Encoder-decoder (the 2017 Transformer, T5, BART): source → encoder → memory; target and memory → decoder → head.

    The encoder runs once; the decoder attends to its output through cross-attention.
    """

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        assert config.encoder is not None
        assert config.decoder is not None
        self.source_embedding = Embedding(config.encoder)
        self.encoder = make_stack(config.encoder, name="encoder", causal=False)
        self.target_embedding = Embedding(config.decoder)
        if config.share_embeddings:
            self.target_embedding.token = self.source_embedding.token
        self.decoder = make_stack(config.decoder, name="decoder", causal=True, cross=True)
        self.head = Head(config.head, config.decoder, self.target_embedding.token)

    @property
    def embeddings(self) -> dict[str, Embedding]:
        """The embeddings of source and target."""
        return {"encoder": self.source_embedding, "decoder": self.target_embedding}


FAMILIES: dict[str, Callable[[Config], Network]] = {"encoder": Encoder, "decoder": Decoder, "seq2seq": Seq2Seq}


def build(config: Config, *, device: torch.device | str = "cpu", dtype: torch.dtype = torch.float32) -> Network:
    """Return a network with new random weights. On `device="meta"` it has only shapes and uses no memory."""
    if not isinstance(config, Config):
        raise UsageError(f"a network is built from a Config or the name of a preset, got {shorten(repr(config))}")
    if torch.device(device).type == "meta":
        with torch.device(device), SkipTorchInit():
            return FAMILIES[config.family](config).to(dtype)
    plugins = find_plugins(config.list_parts())
    with torch.device(device), mark_uninitialised() if plugins else nullcontext():
        network = FAMILIES[config.family](config).to(dtype)
        _initialise(network)
    if plugins:
        _check_initialised(network)
    return network


def _check_initialised(network: nn.Module) -> None:
    """Raise an error if a registered part leaves parameters as they were in memory."""
    for name, parameter in network.named_parameters():
        if bool(parameter.isnan().any()):
            raise QkvError(
                f"{name} has no first values: neither __init__ of its module nor qkv samples it, because it is not the "
                "weight of a linear map, an embedding or a norm; pass init=… to qkv.register_part, or fill it in "
                "__init__, as with torch.randn"
            )


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
        if module._forward_hooks or module._forward_pre_hooks:
            return f"{where} has a hook, which may change what it computes (remove it: handle.remove())"
        shapes = [{key: tuple(p.shape) for key, p in one.named_parameters(recurse=False)} for one in (module, there)]
        if shapes[0] != shapes[1]:
            return f"{where} has the parameters {shapes[0]}, not {shapes[1]}"
        values, expected_values = _plain_values(module), _plain_values(there)
        for key in expected_values:
            if values.get(key) != expected_values[key]:
                return f"{where}.{key} is {values.get(key)!r}, not {expected_values[key]!r}"
    return ""


RUN_VALUES = frozenset({"training", "gradient_checkpointing", "residual_dtype", "kernel", "fused"})
"""The attributes that say how a module runs. They do not change what it computes, and no folder stores them."""


def _plain_values(module: nn.Module) -> dict[str, Any]:
    """The numbers, words and functions of a module of torch or qkv, such as the scale of attention scores."""
    if type(module).__module__.partition(".")[0] not in ("torch", "qkv"):
        return {}  # a registered part may count, for instance
    kinds = (bool, int, float, str, FunctionType, BuiltinFunctionType)
    values = {key: value for key, value in vars(module).items() if key not in RUN_VALUES and not key.startswith("_")}
    return {key: value for key, value in values.items() if isinstance(value, kinds)}


def _class(module: nn.Module) -> str:
    return type(module).__qualname__
