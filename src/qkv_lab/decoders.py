"""Decoders for experiments that change one part: with random weights in float64, or as the keys of a recipe."""

from collections.abc import Mapping
from typing import Any

import torch

from qkv import Config, HeadConfig, StackConfig, build
from qkv.models import Network

HEAD_DIM = 16
CLASSIC_PARTS: dict[str, Any] = {
    "norm": "layernorm",
    "norm_placement": "pre",
    "feedforward": "gelu",
    "bias": "all",
    "position": "sinusoidal",
    "embedding_scale": "sqrt",
    "init": "xavier",
    "dropout": 0.0,
}
"""The parts and the initialisation of the 2017 Transformer, but pre-norm, with GELU and without dropout."""
BARE_ADAM: dict[str, Any] = {
    "train.optimizer": "adam",
    "train.weight_decay": 0.0,
    "train.max_grad_norm": 0.0,
    "train.on_nonfinite": "skip",
}
"""Recipe keys of Adam without weight decay and gradient clipping, which make training more stable."""


def build_decoder(layers: int, width: int, vocab_size: int, **changes: Any) -> Network:
    """A decoder of `CLASSIC_PARTS` with changes, and random weights in float64, so that tiny gradients are not 0."""
    values = {"heads": width // HEAD_DIM, "ffn_width": 4 * width, **CLASSIC_PARTS, **changes}
    stack = StackConfig(vocab_size=vocab_size, width=width, layers=layers, **values)
    network = build(Config(decoder=stack, head=HeadConfig(kind="lm", outputs=vocab_size)), dtype=torch.float64)
    return network


def decoder_keys(layers: int, width: int, changes: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """The recipe keys of such a decoder."""
    values = {"layers": layers, "width": width, "heads": width // HEAD_DIM, "ffn_width": 4 * width}
    return {f"model.{name}": value for name, value in {**values, **CLASSIC_PARTS, **(changes or {})}.items()}
