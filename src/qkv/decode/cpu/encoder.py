"""Encoding sources on a CPU without padding.

A padded batch of unequal sources may be a third padding, which a CPU computes in full. Here the tokens of all sources
are concatenated; attention runs for one source at a time and needs no mask. `Seq2Seq.encode` and `build_cross_cache`
are the reference.

R sources, S the longest, M tokens of all of them, n of one, H heads, KV key/value heads, D head dim, C width
"""

from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from qkv.blocks import CrossCache, SequenceLayout
from qkv.blocks.attention import CrossAttention, SelfAttention
from qkv.blocks.block import Block
from qkv.blocks.kernels.prepared import PreparedMask
from qkv.blocks.position import Rotary
from qkv.decode.cpu.functional import (
    SublayerFunction,
    make_feedforward,
    make_linear,
    make_norm,
    parallel_block,
    residual_sublayer,
    serial_block,
)
from qkv.decode.support import EVERY_CHOICE, supports
from qkv.models import Seq2Seq


class PackedSources(NamedTuple):
    """Where each source is among all tokens, and the masks and rotary tables of attention."""

    spans: list[tuple[int, int]]  # of each source: the first token and the one after the last
    masks: dict[int, PreparedMask]  # by window, for the longest source; shorter ones use a corner of it
    rotaries: dict[int, Rotary]  # by window, for all tokens


def is_supported(network: Seq2Seq) -> bool:
    """Whether this module implements the network's encoder, with this attention kernel."""
    return network.encoder.kernel in ("auto", "sdpa") and supports(EVERY_CHOICE, network.encoder.config)


def encode_sources(network: Seq2Seq, sources: Sequence[Sequence[int]]) -> CrossCache:
    """The keys and values of these sources for every decoder layer."""
    stack, lengths = network.encoder, [len(source) for source in sources]
    every = torch.arange(max(lengths))[None]  # (1, S)
    ids = torch.tensor([token for source in sources for token in source])
    position = torch.cat([every[0, :length] for length in lengths])  # (M,)
    where = network.source_embedding.position_vectors(every)
    x = network.source_embedding.combine(ids, None if where is None else where[0, position])  # (M, C)
    longest = SequenceLayout(None, every)
    shape = PackedSources(
        list(pairwise(accumulate(lengths, initial=0))),
        stack.prepare_masks(x.new_empty(1, max(lengths), 0), longest, longest),
        stack.rotary_tables(x, SequenceLayout(None, position[None])),
    )
    for layer in range(stack.config.layers):
        x = _block(stack.block_of(layer), stack.config.window_of(layer))(x, shape)  # type: ignore[arg-type]
    if stack.norm is not None:
        x = stack.norm(x)
    blocks = [network.decoder.block_of(layer) for layer in range(network.decoder.config.layers)]
    pairs = [_keys_values(block.cross, x, shape.spans, max(lengths)) for block in blocks]  # type: ignore[arg-type]
    segment = None
    if min(lengths) < max(lengths):
        segment = (every < torch.tensor(lengths)[:, None]).long()  # (R, S)
    return CrossCache([k for k, _ in pairs], [v for _, v in pairs], SequenceLayout(segment, every))


def _block(block: Block, window: int) -> SublayerFunction:
    attend = residual_sublayer(block.attention_sub, _attention(block.attention, window), block.attention.out)
    think = residual_sublayer(block.ffn_sub, make_feedforward(block.ffn), block.ffn.down)
    if block.parallel:
        return parallel_block(attend, think)
    return serial_block([(block.attention_sub, attend), (block.ffn_sub, think)])


def _attention(attention: SelfAttention, window: int) -> SublayerFunction:
    qkv, width = make_linear(attention.qkv), attention.head_dim
    split = (attention.heads, attention.kv_heads, attention.kv_heads)
    scale, grouped = attention.scale, attention.heads != attention.kv_heads

    def part(x: Tensor, shape: PackedSources) -> Tensor:
        every = qkv(x).view(1, x.shape[0], -1, width).transpose(1, 2)  # (1, H + 2KV, M, D)
        q, k, v = torch.split_with_sizes(every, split, 1)
        if attention.q_norm is not None and attention.k_norm is not None:
            q, k = attention.q_norm(q), attention.k_norm(k)
        if shape.rotaries:
            rotary = shape.rotaries[window]
            q, k = rotary.rotate(q), rotary.rotate(k)
        mask = shape.masks[window].attn_mask
        answers = []
        for begin, end in shape.spans:
            queries, keys, values = (t[:, :, begin:end] for t in (q, k, v))  # (1, …, n, D)
            seen = None if mask is None else mask[..., : end - begin, : end - begin]
            z = F.scaled_dot_product_attention(queries, keys, values, seen, scale=scale, enable_gqa=grouped)
            answers.append(z.transpose(1, 2).flatten(2)[0])  # (n, H · D)
        return torch.cat(answers) if len(answers) > 1 else answers[0]

    return part


def _keys_values(
    cross: CrossAttention, x: Tensor, spans: Sequence[tuple[int, int]], longest: int
) -> tuple[Tensor, Tensor]:
    """One layer's keys and values (R, KV, S, D), zeros at padding."""
    both = make_linear(cross.kv)(x).view(-1, 2, cross.kv_heads, cross.head_dim)  # (M, 2, KV, D)
    out = x.new_zeros(2, len(spans), cross.kv_heads, longest, cross.head_dim)
    for row, (begin, end) in enumerate(spans):
        out[:, row, :, : end - begin] = both[begin:end].permute(1, 2, 0, 3)
    k, v = out
    return k if cross.k_norm is None else make_norm(cross.k_norm)(k), v
