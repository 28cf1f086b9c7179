"""The parts of a Transformer. Read them in this order:

config        the fields that describe a stack    embedding    ids → vectors
position      position encodings                  mask         which tokens attend to which
attention     softmax(QKᵀ/√D) V                   feedforward  the MLP of a block
norm          LayerNorm, RMSNorm                  block        attention and MLP, residual sums
stack         blocks in sequence                  head         hidden states → outputs
cache         keys and values kept in decoding    tap          recording and changing activations
init          initial weights
kernels/      fast kernels                        checks/      checks of configs; skip both at first
"""

from qkv.blocks.cache import CrossCache, EncoderMemory, SelfCache
from qkv.blocks.config import AttentionKernel, RotaryScaling, StackConfig
from qkv.blocks.embedding import Embedding
from qkv.blocks.head import Head, HeadConfig, pool
from qkv.blocks.init import initialise
from qkv.blocks.kernels.prepared import KernelHints
from qkv.blocks.mask import Mask, SequenceLayout, make_layout, positions_in_documents
from qkv.blocks.stack import Stack
from qkv.blocks.tap import SITES, Tap

__all__ = [
    "SITES",
    "AttentionKernel",
    "CrossCache",
    "Embedding",
    "EncoderMemory",
    "Head",
    "HeadConfig",
    "KernelHints",
    "Mask",
    "RotaryScaling",
    "SelfCache",
    "SequenceLayout",
    "Stack",
    "StackConfig",
    "Tap",
    "initialise",
    "make_layout",
    "pool",
    "positions_in_documents",
]
