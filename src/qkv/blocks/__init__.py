"""The parts of a Transformer. Read them in this order:

config        the fields that describe a stack    parts        which name builds which part
inputs        the input of a network              embedding    ids → vectors
position      position encodings                  mask         which tokens attend to which
attention     softmax(QKᵀ/√D) V                   feedforward  the MLP of a block
experts       a mixture of them
norm          LayerNorm, RMSNorm                  block        attention and MLP, residual sums
stack         blocks in sequence                  head         hidden states → outputs
cache         keys and values kept in decoding    tap          recording and changing activations
init          initial weights                     cost         parameters and FLOPs of each part
recurrent     RNN, GRU and LSTM, in place of blocks
word_embedding  words from their hashed features, in place of a vocabulary
kernels/      fast kernels                        checks/      checks of configs; skip both at first

A config needs no torch. The other names import it when they are first used.
"""

from typing import TYPE_CHECKING

from qkv.lazy import lazy_names

if TYPE_CHECKING:
    from qkv.blocks.cache import CrossCache, EncoderMemory, SelfCache
    from qkv.blocks.config import AttentionKernel, HeadConfig, RotaryScaling, StackConfig
    from qkv.blocks.cost import PartCost
    from qkv.blocks.embedding import Embedding
    from qkv.blocks.head import Head, pool
    from qkv.blocks.init import initialise
    from qkv.blocks.inputs import Inputs, Payload, as_inputs
    from qkv.blocks.kernels.prepared import KernelHints
    from qkv.blocks.mask import Mask, SequenceLayout, make_layout, positions_in_documents
    from qkv.blocks.parts import register_part
    from qkv.blocks.recurrent import RecurrentCache, RecurrentStack
    from qkv.blocks.stack import Stack, make_stack
    from qkv.blocks.tap import Tap
else:
    __getattr__ = lazy_names(
        __name__,
        {
            "cache": "CrossCache EncoderMemory SelfCache",
            "config": "AttentionKernel HeadConfig RotaryScaling StackConfig",
            "cost": "PartCost",
            "embedding": "Embedding",
            "head": "Head pool",
            "init": "initialise",
            "inputs": "Inputs Payload as_inputs",
            "kernels.prepared": "KernelHints",
            "mask": "Mask SequenceLayout make_layout positions_in_documents",
            "parts": "register_part",
            "recurrent": "RecurrentCache RecurrentStack",
            "stack": "Stack make_stack",
            "tap": "Tap",
        },
    )

__all__ = [
    "AttentionKernel",
    "CrossCache",
    "Embedding",
    "EncoderMemory",
    "Head",
    "HeadConfig",
    "Inputs",
    "KernelHints",
    "Mask",
    "PartCost",
    "Payload",
    "RecurrentCache",
    "RecurrentStack",
    "RotaryScaling",
    "SelfCache",
    "SequenceLayout",
    "Stack",
    "StackConfig",
    "Tap",
    "as_inputs",
    "initialise",
    "make_layout",
    "make_stack",
    "pool",
    "positions_in_documents",
    "register_part",
]
