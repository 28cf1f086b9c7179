"""Small networks of all three families with random weights, for the tests of `qkv.inside`."""

from typing import Any

import torch

from qkv.blocks import HeadConfig, StackConfig
from qkv.inside.forward import Example
from qkv.models import Config, Network, build

VOCAB = 40
FAMILIES = ("encoder", "decoder", "seq2seq")
IDS = [5, 3, 9, 5, 3, 7, 1]
OTHER_IDS = [5, 3, 2, 5, 8, 7, 1]
SOURCE_IDS = [4, 8, 15, 16, 23]
OTHER_SOURCE_IDS = [4, 8, 11, 16, 2]


def make_network(
    family: str, *, head: HeadConfig | None = None, dtype: torch.dtype = torch.float64, seed: int = 0, **choices: Any
) -> Network:
    """A network in eval mode. Norms and biases differ from their initial values, so that leaving one out shows."""
    size = {"width": 16, "layers": 2, "heads": 4, "ffn_width": 24, "max_positions": 64, "init_std": 0.3}
    stack = StackConfig(**{"vocab_size": VOCAB, **size, **choices})
    kind = "mlm" if family == "encoder" else "lm"
    config = Config(
        encoder=stack if family != "decoder" else None,
        decoder=stack if family != "encoder" else None,
        head=head or HeadConfig(kind=kind, outputs=VOCAB),  # type: ignore[arg-type]
        decoder_start_token_id=0 if family == "seq2seq" else None,
    )
    torch.manual_seed(seed)
    network = build(config, dtype=dtype)
    with torch.no_grad():
        for parameter in network.parameters():
            if parameter.dim() == 1:
                parameter.add_(0.2 * torch.randn_like(parameter))
    return network.eval()


def make_example(family: str, *, other: bool = False) -> Example:
    """An example for a network of this family. The other example has the same length and other tokens."""
    ids = OTHER_IDS if other else IDS
    if family != "seq2seq":
        return ids
    return (OTHER_SOURCE_IDS if other else SOURCE_IDS), [0, *ids]
