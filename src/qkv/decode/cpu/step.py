"""One decoding step on a CPU, with little Python between the kernels.

In a step of one token per sequence, the matrix products are so small that the overhead of modules takes longer. Here a
decoder is turned into plain functions once, and a step only calls these functions. They run the operators of `Stack`,
which is the reference, on the same numbers in the same order. Position biases, rotary tables and masks are still
computed by `Stack`, except the masks of beams.

All beams of a prompt are stored in one row of the cache (`beam_slots.py`).

N rows of the cache, T beams in each, R = N · T sequences, S slots or source tokens, H heads, KV key/value heads,
D head dim, C width
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from qkv.blocks import CrossCache, SelfCache, SequenceLayout, make_layout
from qkv.blocks.attention import Attention, CrossAttention, SelfAttention
from qkv.blocks.block import Block
from qkv.blocks.position import Rotary
from qkv.decode.cache_edits import reorder_cache
from qkv.decode.cpu.beam_slots import NEG_INF, BeamSlots
from qkv.decode.cpu.functional import SublayerFunction, make_block, make_linear, make_norm
from qkv.decode.support import EVERY_CHOICE, is_unmodified, supports
from qkv.models import Network

HeadFunction = Callable[[Tensor], Tensor]
"""A function of queries or keys (N, H, T, D) that returns a tensor of the same shape."""
MIN_BATCHED_QUERIES = 8
"""With this number of queries or more, attention runs as batched matrix products."""


class StepContext(NamedTuple):
    """The values that all layers of one step share."""

    cache_rows: int  # N
    cache: SelfCache
    cross_cache: CrossCache | None
    masks: dict[int, Tensor | None]  # by window size, (N or 1, 1 or H, T, S): 0, −∞ or a bias; empty: no mask
    rotations: dict[int, HeadFunction]  # by window size; empty if positions are not rotary
    source_mask: Tensor | None  # (sources, 1, 1, S): 0 or −∞; None if there is no padding


def is_supported(network: Network) -> bool:
    """Return whether `cpu/` supports this network, its device, its modules and its kernels. Autocast must be off."""
    stacks = network.stacks.values()
    return (
        all(supports(EVERY_CHOICE, stack.config) and stack.kernel in ("auto", "sdpa") for stack in stacks)
        and network.device.type == "cpu"
        and not network.training
        and not torch.is_autocast_enabled("cpu")
        and is_unmodified(network)
    )


class CpuStep:
    """The decoder of a network as a function of the newest tokens.

    A `generate` call makes one for its batch. An `Engine` keeps one for its lifetime.
    """

    def __init__(self, network: Network) -> None:
        self.stack, self.head = network.output_stack, network.head
        self.embedding = network.output_embedding
        config = self.stack.config
        # Whether the mask depends only on the order of the tokens.
        self.is_causal_only = self.stack.bias is None and not config.sliding_window
        self.layers = [_make_block(self.stack.block_of(i), i, config.window_of(i)) for i in range(config.layers)]  # type: ignore[arg-type]
        self.norm = None if self.stack.norm is None else make_norm(self.stack.norm)
        changes_logits = self.head.config.normalize or self.head.config.logit_cap
        self.out = None if self.head.out is None or changes_logits else make_linear(self.head.out)
        self.position_table: Tensor | None = None  # position vectors (1, L, C), added to the token embedding
        self.table_length = 0  # L
        self.source_mask: tuple[CrossCache, Tensor] | None = None  # the current sources and their mask
        self.beams: BeamSlots | None = None  # set by `expand_beams`

    def __call__(self, ids: Tensor, cache: SelfCache, cross_cache: CrossCache | None) -> Tensor:
        """Read the newest token of each sequence (R,), and return the logits (R, V) of the next tokens."""
        if self.beams is None:
            ids = ids[:, None]  # (N, T)
            layout = make_layout(ids, None, cache.next_positions(ids, None))  # (N, T), or (1, T) if positions are equal
        else:
            ids, layout = ids.view(-1, self.beams.num_beams), self.beams.advance()
        keys = cache.add_layout(layout)
        x = self.embedding.combine(ids, self._position_vectors(layout.positions, cache))  # (N, T, C)
        masks = self._masks(x, layout, keys)
        rotations = {
            window: make_rotation(rotary, self.stack.config.head_dim)
            for window, rotary in self.stack.rotary_tables(x, layout).items()
        }
        context = StepContext(ids.shape[0], cache, cross_cache, masks, rotations, self._source_mask(x, cross_cache))
        x = x.flatten(0, 1)
        for layer in self.layers:
            x = layer(x, context)
        if self.norm is not None:
            x = self.norm(x)
        if self.out is None or self.head.out is None:
            return self.head.project(x)
        return self.out(self.head.transform(x).to(self.head.out.weight.dtype))

    def expand_beams(self, cache: SelfCache, num_beams: int) -> None:
        """Let each row of the cache hold `num_beams` beams, which share the slots that are filled now."""
        assert self.beams is None, "expand_beams may be called only once"
        self.beams = BeamSlots(cache, num_beams, self.embedding.token.weight.dtype)

    def reorder(self, cache: SelfCache, parents: Tensor) -> None:
        """Replace each sequence r by sequence `parents[r]`. After `expand_beams`, it must be in the same row."""
        if self.beams is None:
            reorder_cache(cache, parents)
        else:
            self.beams.reorder(parents)

    def _position_vectors(self, positions: Tensor, cache: SelfCache) -> Tensor | None:
        """Return the position vectors of the newest tokens. Their table is extended when the cache grows."""
        if self.table_length < cache.capacity:
            self.table_length = cache.capacity
            config = self.stack.config
            last = min(self.table_length, config.max_positions) if config.has_max_positions else self.table_length
            self.position_table = self.embedding.position_vectors(torch.arange(last)[None])
            if self.position_table is not None:
                self.position_table = self.position_table.to(self.embedding.token.weight.dtype)
        return None if self.position_table is None else self.position_table[0, positions]

    def _masks(self, x: Tensor, layout: SequenceLayout, keys: SequenceLayout) -> dict[int, Tensor | None]:
        """Return the tensors that are added to the attention scores, by window size."""
        beam_mask = None if self.beams is None else self.beams.mask[:, None]  # (N, 1, T, S)
        if self.is_causal_only and beam_mask is not None:
            return {0: beam_mask}  # it also masks padding
        if self.is_causal_only and keys.document_ids is None:
            return {}
        masks: dict[int, Tensor | None] = {}
        for window, prepared in self.stack.prepare_masks(x, layout, keys).items():
            mask = prepared.attn_mask
            if mask is not None and not mask.is_floating_point():
                mask = torch.zeros_like(mask, dtype=x.dtype).masked_fill_(~mask, NEG_INF)
            masks[window] = mask if beam_mask is None else beam_mask if mask is None else mask + beam_mask
        return masks

    def _source_mask(self, x: Tensor, cross_cache: CrossCache | None) -> Tensor | None:
        """Return the mask of the sources. It is computed only when the sources change."""
        if cross_cache is None or cross_cache.layout.document_ids is None:
            return None
        if self.source_mask is None or self.source_mask[0] is not cross_cache:
            padding = (cross_cache.layout.document_ids == 0)[:, None, None]
            self.source_mask = (cross_cache, torch.zeros_like(padding, dtype=x.dtype).masked_fill_(padding, NEG_INF))
        return self.source_mask[1]


def _make_block(block: Block, layer: int, window: int) -> SublayerFunction:
    cross = None if block.cross is None else _make_cross_attention(block.cross, layer)
    return make_block(block, _make_self_attention(block.attention, layer, window), cross)


def _make_self_attention(attention: SelfAttention, layer: int, window: int) -> SublayerFunction:
    qkv, attend, width = make_linear(attention.qkv), _make_attention(attention), attention.head_dim
    split_qk = (attention.heads, attention.kv_heads)
    split_qk_v = (sum(split_qk), attention.kv_heads)
    q_norm = None if attention.q_norm is None else make_norm(attention.q_norm)
    k_norm = None if attention.k_norm is None else make_norm(attention.k_norm)

    def self_attention(x: Tensor, context: StepContext) -> Tensor:
        heads = qkv(x).view(context.cache_rows, -1, sum(split_qk_v), width).transpose(1, 2)  # (N, H + 2KV, T, D)
        qk, v = torch.split_with_sizes(heads, split_qk_v, 1)
        if q_norm is not None and k_norm is not None:
            q, k = torch.split_with_sizes(qk, split_qk, 1)
            qk = torch.cat([q_norm(q), k_norm(k)], dim=1)
        if context.rotations:
            qk = context.rotations[window](qk)
        q, k = torch.split_with_sizes(qk, split_qk, 1)
        k, v = context.cache.write(layer, k, v)
        return attend(q, k, v, context.masks.get(window))

    return self_attention


def make_rotation(rotary: Rotary, head_dim: int) -> HeadFunction:
    """Return `rotary.rotate` as a function. If all tokens are at one position, it is a single matrix product."""
    cos, sin = rotary.cos.flatten(), rotary.sin.flatten()
    width = rotary.cos.shape[-1]
    if len(cos) != width:
        return rotary.rotate
    matrix = torch.eye(head_dim, dtype=cos.dtype)  # dimensions that do not rotate stay
    index = torch.arange(width)
    matrix[index, index] = cos
    matrix[index.roll(width // 2), index] = sin  # xᵢ · cosᵢ + xⱼ · sinᵢ, where j is i ± width / 2

    def rotate(x: Tensor) -> Tensor:
        return torch.mm(x.reshape(-1, head_dim).to(matrix.dtype), matrix).to(x.dtype).view(x.shape)

    return rotate


def _make_cross_attention(attention: CrossAttention, layer: int) -> SublayerFunction:
    project, attend = make_linear(attention.q), _make_attention(attention)
    heads, width = attention.heads, attention.head_dim
    q_norm = None if attention.q_norm is None else make_norm(attention.q_norm)

    def cross_attention(x: Tensor, context: StepContext) -> Tensor:
        assert context.cross_cache is not None
        k, v = context.cross_cache.keys[layer], context.cross_cache.values[layer]
        q = project(x).view(k.shape[0], -1, heads, width).transpose(1, 2)  # (sources, H, T, D)
        if q_norm is not None:
            q = q_norm(q)
        return attend(q, k, v, context.source_mask)

    return cross_attention


def _make_attention(attention: Attention) -> Callable[[Tensor, Tensor, Tensor, Tensor | None], Tensor]:
    """Return a function for softmax(QKᵀ · scale + mask) V with few queries.

    It takes q (N, H, T, D), k and v (N, KV, S, D), and returns (N · T, H · D).
    """
    scale, grouped = attention.scale, attention.heads != attention.kv_heads
    zero = torch.zeros((), dtype=attention.out.weight.dtype)

    def attend(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
        rows, heads, queries, width = q.shape
        if rows * queries < MIN_BATCHED_QUERIES or q.dtype not in (torch.float32, torch.float64):
            z = F.scaled_dot_product_attention(q, k, v, mask, scale=scale, enable_gqa=grouped)
        else:
            # torch's attention kernel runs one row and head after another. Batched products have less overhead.
            groups, length = rows * k.shape[1], k.shape[2]
            q = q.reshape(groups, -1, width)  # the queries of all heads that share a key
            keys, values = (t.reshape(groups, length, width) for t in (k, v))  # a paged cache is copied here
            scores = torch.baddbmm(zero, q, keys.transpose(1, 2), beta=0, alpha=scale)
            if mask is not None:
                scores.view(rows, heads, queries, length).add_(mask)
            z = torch.bmm(scores.softmax(-1), values).view(rows, heads, queries, width)
        return z.transpose(1, 2).reshape(rows * queries, heads * width)

    return attend
