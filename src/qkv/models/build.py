"""From a config to a network."""

import torch

from qkv.models.config import Config
from qkv.models.decoder import Decoder
from qkv.models.encoder import Encoder
from qkv.models.seq2seq import Seq2Seq

Network = Encoder | Decoder | Seq2Seq
FAMILIES: dict[str, type[Encoder] | type[Decoder] | type[Seq2Seq]] = {
    "encoder": Encoder,
    "decoder": Decoder,
    "seq2seq": Seq2Seq,
}


def build(config: Config, *, device: torch.device | str = "cpu", dtype: torch.dtype = torch.float32) -> Network:
    """A network with new random weights; on `device="meta"` it has shapes only and takes no memory."""
    with torch.device(device):
        network = FAMILIES[config.family](config).to(dtype)
    if torch.device(device).type != "meta":
        network.initialise()
    return network
