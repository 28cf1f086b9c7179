"""The three families, their configs, presets, accounts, and the tables to and from public checkpoints.

config    an encoder, a decoder or both, and a head          build      config → network
encoder   decoder   seq2seq                                   presets    published sizes, as plain functions
account   where parameters, FLOPs and memory go               tables     other people's names for the same weights
vectors   embeddings started from GloVe or word2vec files     length     refuses texts beyond the positions
"""

from qkv.models.build import Network, build
from qkv.models.config import Config
from qkv.models.decoder import Decoder
from qkv.models.encoder import Encoder
from qkv.models.seq2seq import Seq2Seq

__all__ = ["Config", "Decoder", "Encoder", "Network", "Seq2Seq", "build"]
