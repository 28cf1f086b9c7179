"""The three families of models, their configs, and the tables to and from public checkpoints.

config    an encoder, a decoder or both, and a head          build      config → network
encoder   decoder   seq2seq                                  length     rejects texts longer than the position table
tables/   published models: presets, names of weights, and what a model costs
"""

from qkv.models.build import Network, build
from qkv.models.config import Config
from qkv.models.decoder import Decoder
from qkv.models.encoder import Encoder
from qkv.models.seq2seq import Seq2Seq

__all__ = ["Config", "Decoder", "Encoder", "Network", "Seq2Seq", "build"]
