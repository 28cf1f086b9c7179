"""The three families of models, their configs, and the tables that convert public checkpoints.

config    an encoder, a decoder or both, and a head          build      config → network
encoder   decoder   seq2seq                                  runtime/   checks of inputs, padding, memory
tables/   published models: presets, config keys and tensor names; parameter and FLOP counts
"""

from qkv.models.build import Network, build
from qkv.models.config import Config
from qkv.models.decoder import Decoder
from qkv.models.encoder import Encoder
from qkv.models.seq2seq import Seq2Seq

__all__ = ["Config", "Decoder", "Encoder", "Network", "Seq2Seq", "build"]
