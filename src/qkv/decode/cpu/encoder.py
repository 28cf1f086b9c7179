"""Encode sources on a CPU without padding.

A third of a padded batch may be padding, and a CPU would compute all of it. Here the tokens of all sources are
concatenated. Attention runs for one source at a time and needs no padding mask. `Network.encode` and
`build_cross_cache` are the reference.

R sources, S tokens of the longest source, M tokens of all sources, n tokens of one source, H heads, KV key/value heads,
D head dim, C width
"""

from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import NamedTuple, cast

import torch
from torch import Tensor
from torch.nn import functional as F

from qkv.blocks import CrossCache, SequenceLayout
from qkv.blocks.attention import CrossAttention, SelfAttention
from qkv.blocks.block import Block
from qkv.blocks.kernels.prepared import PreparedMask
from qkv.blocks.position import Rotary
from qkv.decode.cpu.functional import SublayerFunction, make_block, make_linear, make_norm
from qkv.models import Network


class PackedSources(NamedTuple):
    """The span of each source among all tokens, and the masks and rotary tables of attention."""

    spans: list[tuple[int, int]]  # the first token of each source, and the token after its last
    masks: dict[int, PreparedMask]  # by window size, for S tokens; shorter sources use the top left part
    rotaries: dict[int, Rotary]  # by window size, for all M tokens


def encode_sources(network: Network, sources: Sequence[Sequence[int]]) -> CrossCache:
    """Encode sources, and return the keys and values of every decoder layer for them."""
    stack, embedding, lengths = (
        network.stacks["encoder"],
        network.embeddings["encoder"],
        [len(source) for source in sources],
    )
    max_length = max(lengths)
    source_positions = torch.arange(max_length)[None]  # (1, S)
    ids = torch.tensor([token for source in sources for token in source])
    positions = torch.cat([source_positions[0, :length] for length in lengths])  # (M,)
    vectors = embedding.position_vectors(source_positions)
    x = embedding.combine(ids, None if vectors is None else vectors[0, positions])  # (M, C)
    layout = SequenceLayout(None, source_positions)
    packed = PackedSources(
        list(pairwise(accumulate(lengths, initial=0))),
        stack.prepare_masks(x.new_empty(1, max_length, 0), layout, layout),
        stack.rotary_tables(x, SequenceLayout(None, positions[None])),
    )
    for layer in range(stack.config.layers):
        block = cast(Block, stack.block_of(layer))
        x = make_block(block, _make_attention(block.attention, stack.config.window_of(layer)))(x, packed)
    if stack.norm is not None:
        x = stack.norm(x)
    blocks = [network.output_stack.block_of(layer) for layer in range(network.output_stack.config.layers)]
    pairs = [_keys_values(block.cross, x, packed.spans, max_length) for block in blocks]  # type: ignore[arg-type]
    document_ids = None
    if min(lengths) < max_length:
        document_ids = (source_positions < torch.tensor(lengths)[:, None]).long()  # (R, S)
    return CrossCache([k for k, _ in pairs], [v for _, v in pairs], SequenceLayout(document_ids, source_positions))


def _make_attention(attention: SelfAttention, window: int) -> SublayerFunction:
    qkv, width = make_linear(attention.qkv), attention.head_dim
    split = (attention.heads, attention.kv_heads, attention.kv_heads)
    scale, grouped = attention.scale, attention.heads != attention.kv_heads

    def attend(x: Tensor, packed: PackedSources) -> Tensor:
        heads = qkv(x).view(1, x.shape[0], -1, width).transpose(1, 2)  # (1, H + 2KV, M, D)
        q, k, v = torch.split_with_sizes(heads, split, 1)
        if attention.q_norm is not None and attention.k_norm is not None:
            q, k = attention.q_norm(q), attention.k_norm(k)
        if packed.rotaries:
            rotary = packed.rotaries[window]
            q, k = rotary.rotate(q), rotary.rotate(k)
        mask = packed.masks[window].attn_mask
        outputs = []
        for begin, end in packed.spans:
            queries, keys, values = (t[:, :, begin:end] for t in (q, k, v))  # (1, …, n, D)
            source_mask = None if mask is None else mask[..., : end - begin, : end - begin]
            z = F.scaled_dot_product_attention(queries, keys, values, source_mask, scale=scale, enable_gqa=grouped)
            outputs.append(z.transpose(1, 2).flatten(2)[0])  # (n, H · D)
        return torch.cat(outputs) if len(outputs) > 1 else outputs[0]

    return attend


def _keys_values(
    cross: CrossAttention, x: Tensor, spans: Sequence[tuple[int, int]], max_length: int
) -> tuple[Tensor, Tensor]:
    """Return one layer's keys and values, (R, KV, S, D) each, with zeros at padding."""
    both = make_linear(cross.kv)(x).view(-1, 2, cross.kv_heads, cross.head_dim)  # (M, 2, KV, D)
    out = x.new_zeros(2, len(spans), cross.kv_heads, max_length, cross.head_dim)
    for row, (begin, end) in enumerate(spans):
        out[:, row, :, : end - begin] = both[begin:end].permute(1, 2, 0, 3)
    k, v = out
    return k if cross.k_norm is None else make_norm(cross.k_norm)(k), v
