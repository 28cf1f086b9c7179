"""The most active neurons of each layer: hidden units of the feed-forward network, after the activation.

For a mixture of experts, the units are its experts, and their activations are the weights of the router.

T tokens, F neurons of a layer
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from qkv.blocks import Stack, StackConfig
from qkv.blocks.parts import find_part
from qkv.inside.neurons import promoted_texts
from qkv.models import Network
from qkv.page import pack, pack_signed
from qkv.text import Tokenizer

NUM_NEURONS = 12
NUM_PER_TOKEN = 5
NUM_PROMOTED = 4


def describe_layer(
    network: Network, values: Mapping[str, Tensor], stack: Stack, layer: int, tokenizer: Tokenizer | None
) -> dict[str, Any]:
    """The neurons of one layer, with the tokens whose logits they raise most.

    `promotes` is None if the head does not read this stack or does not predict tokens, or if the feed-forward has no
    linear map `down`.
    """
    site = unit_site(stack.config)
    described = describe_units(values[f"{stack.name}.{layer}.{site}"].float())
    promotes = None
    down = getattr(getattr(stack.block_of(layer), "ffn", None), "down", None)
    if network.config.head.kind in ("lm", "mlm") and stack is network.output_stack and isinstance(down, nn.Linear):
        promotes = promoted_texts(network, down.weight[:, described["neurons"]].T, tokenizer, NUM_PROMOTED)
    noun = "expert" if site == "routing" else "neuron"
    return {"stack": stack.name, "layer": layer, "noun": noun, "promotes": promotes, **described}


def unit_site(stack: StackConfig) -> str:
    """The site whose values are drawn: the weights of experts, or the hidden units of one network."""
    return "routing" if "routing" in find_part("feedforward", stack).sites else "mlp_post"


def describe_units(activations: Tensor) -> dict[str, Any]:
    """Of activations (T, F): the units with the highest peaks, and the strongest units of each token."""
    size = activations.shape[1]
    peaks, positions = activations.max(dim=0)
    chosen = peaks.topk(min(NUM_NEURONS, size)).indices
    strongest, neurons = activations.topk(min(NUM_PER_TOKEN, size), dim=1)
    shown: Tensor = activations[:, chosen].T
    return {
        "size": size,
        "neurons": chosen.tolist(),
        "peaks": [round(peak, 4) for peak in peaks[chosen].tolist()],
        "peak_positions": positions[chosen].tolist(),
        "activations": pack_signed(shown.numpy()),
        "token_neurons": pack(neurons.to(torch.int32).numpy()),
        "token_values": pack(strongest.numpy()),
    }
