"""The parts. A newcomer reads them in this order:

config        every choice there is
embedding     ids → vectors                       position     how order gets in
mask          who may see whom                    attention    softmax(QKᵀ/√D) V, plainly and fast
feedforward   widen, bend, narrow                 norm         LayerNorm, RMSNorm
block         attend, think, add                  stack        the block again and again
head          vectors → answers                   cache        what decoding remembers
tap           looking inside                      init         how weights start
"""

from qkv.blocks.cache import CrossCache, EncoderMemory, SelfCache
from qkv.blocks.config import AttentionKernel, RotaryScaling, StackConfig
from qkv.blocks.embedding import Embedding
from qkv.blocks.head import Head, HeadConfig, pool
from qkv.blocks.init import initialise
from qkv.blocks.kernels.prepared import KernelHints
from qkv.blocks.mask import Mask, SequenceLayout, count_positions, make_layout
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
    "count_positions",
    "initialise",
    "make_layout",
    "pool",
]
