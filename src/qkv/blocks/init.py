"""Initialisation of weights, as in each family's paper or reference implementation.

normal   N(0, σ) with σ = init_std: BERT, BART, Llama, GPT-NeoX
scaled   as normal, but σ of the projections into the residual stream is divided by √(number of these projections in
         the stack): GPT-2, ModernBERT
xavier   Glorot-uniform matrices, embeddings with σ = 1/√C: the 2017 Transformer
t5       σ = 1/√fan-in; query weights are smaller by 1/√D, because T5 does not scale its scores

A part that states `init`, or has a method `init_weights(config)`, samples its own weights, as the recurrent layers do.
"""

import math

import torch
from torch import nn

from qkv.blocks.attention import CrossAttention, SelfAttention
from qkv.blocks.block import Block
from qkv.blocks.config import StackConfig
from qkv.blocks.feedforward import FeedForward
from qkv.blocks.head import Head
from qkv.blocks.stack import Stack


@torch.no_grad()
def initialise(network: nn.Module, config: StackConfig) -> None:
    """Sample every weight of `network`. Norm gains become 1, and biases 0, except in recurrent layers.

    A tied head shares its matrix with the embedding: initialise the head first, then the embedding.
    """
    for module in network.modules():
        if isinstance(module, nn.Linear):
            if config.init == "xavier":
                nn.init.xavier_uniform_(module.weight)
            else:
                nn.init.normal_(module.weight, std=config.init_std)
            if module.bias is not None:
                nn.init.zeros_(module.bias)
        elif isinstance(module, nn.Embedding):
            std = {"xavier": module.embedding_dim**-0.5, "t5": 1.0}.get(config.init, config.init_std)
            nn.init.normal_(module.weight, std=std)
        elif isinstance(module, nn.LayerNorm | nn.RMSNorm):
            if module.weight is not None:
                nn.init.ones_(module.weight)
            if getattr(module, "bias", None) is not None:
                nn.init.zeros_(module.bias)  # type: ignore[arg-type]
    for module in network.modules():
        if isinstance(module, Block):
            if config.init == "scaled":
                _init_scaled(module, config)
            elif config.init == "xavier":
                _init_xavier(module)
            elif config.init == "t5":
                _init_t5(module, config)
        if (row := getattr(module, "part_row", None)) is not None and row.init is not None:
            row.init(module, config)
        elif callable(init_weights := getattr(module, "init_weights", None)):
            init_weights(config)
        elif isinstance(module, Head) and config.init == "t5" and module.config.kind == "lm" and not module.config.tied:
            nn.init.normal_(module.out.weight, std=1.0)  # type: ignore[union-attr]
        elif isinstance(module, Stack) and config.init == "t5" and getattr(module.bias, "table", None) is not None:
            nn.init.normal_(module.bias.table.weight, std=config.width**-0.5)  # type: ignore[union-attr]


def _init_scaled(block: Block, config: StackConfig) -> None:
    """Sample the projections into the residual stream: 2 per layer, or 3 with cross-attention."""
    attention, cross, ffn = _built_in_parts(block)
    projections = [*(part.out for part in attention), *(part.down for part in ffn), *(part.out for part in cross)]
    count = len(attention) + len(cross) + bool(ffn)
    for linear in projections:
        nn.init.normal_(linear.weight, std=config.init_std / math.sqrt(count * config.layers))


def _init_xavier(block: Block) -> None:
    """Sample each part of a fused matrix with its own Glorot bound, not with the bound of the whole matrix."""
    attention, cross, ffn = _built_in_parts(block)
    matrices = [matrix for part in attention for matrix in part.qkv.weight.split(part.split_sizes)]
    matrices += [matrix for part in cross for matrix in part.kv.weight.chunk(2)]
    matrices += [matrix for part in ffn if part.gated for matrix in part.up.weight.chunk(2)]
    for matrix in matrices:
        nn.init.xavier_uniform_(matrix)


def _init_t5(block: Block, config: StackConfig) -> None:
    """Sample with σ = 1/√fan-in, so that activations keep their variance."""
    width, inner = config.width, config.heads * config.head_dim
    attention, cross, ffn = _built_in_parts(block)
    projections = [(*part.qkv.weight.split(part.split_sizes), part.out) for part in attention]
    projections += [(part.q.weight, *part.kv.weight.chunk(2), part.out) for part in cross]
    for query, key, value, out in projections:
        nn.init.normal_(query, std=(width * config.head_dim) ** -0.5)
        for other in (key, value):
            nn.init.normal_(other, std=width**-0.5)
        nn.init.normal_(out.weight, std=inner**-0.5)
    for part in ffn:
        nn.init.normal_(part.up.weight, std=width**-0.5)
        nn.init.normal_(part.down.weight, std=config.ffn_width**-0.5)


def _built_in_parts(block: Block) -> tuple[list[SelfAttention], list[CrossAttention], list[FeedForward]]:
    """Return the parts of a block whose matrices this file initialises. Each expert of a mixture is a feed-forward."""
    return (
        [block.attention] if isinstance(block.attention, SelfAttention) else [],
        [block.cross] if isinstance(block.cross, CrossAttention) else [],
        [one for one in getattr(block.ffn, "experts", [block.ffn]) if isinstance(one, FeedForward)],
    )
