"""One decoding step on a CPU, with little Python between the kernels.

In a step of one token per sequence the matrix products are so small that the modules around them take longer. Here a
decoder is flattened once per call into plain functions, and a step only calls them. They are the operators of `Stack`,
on the same numbers in the same order, and `Stack` is the reference. Masks, biases and rotary tables are computed by the
stack, and only where there are any.

The beams of one prompt write into one row of the cache, side by side (`beam_slots.py`).

N rows of the cache, T beams in each, R = N · T, S slots or source tokens, H heads, KV key/value heads, D head dim,
C width
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
from qkv.models import Decoder, Seq2Seq

MIN_BATCHED_QUERIES = 8
"""From this number of queries on, attention runs as batched matrix products."""


class StepContext(NamedTuple):
    """What all layers of one step share."""

    cache_rows: int  # N
    cache: SelfCache
    cross_cache: CrossCache | None
    masks: dict[int, Tensor | None]  # by window, (N or 1, 1 or H, T, S): 0, −∞ or a bias; empty: no mask
    rotaries: dict[int, Rotary]  # by window; empty without rotary positions
    source_mask: Tensor | None  # (sources, 1, 1, S), 0 or −∞; None without padding


def is_supported(network: Decoder | Seq2Seq) -> bool:
    """Whether `CpuStep` implements this network, on this device, with this attention kernel, outside autocast."""
    stack = network.decoder
    return (
        supports(EVERY_CHOICE, stack.config)
        and next(network.parameters()).device.type == "cpu"
        and not network.training
        and stack.kernel in ("auto", "sdpa")
        and not torch.is_autocast_enabled("cpu")
    )


class CpuStep:
    """The decoder of a network as a function of the newest tokens, for one call."""

    def __init__(self, network: Decoder | Seq2Seq) -> None:
        self.stack, self.head = network.decoder, network.head
        self.embedding = network.target_embedding if isinstance(network, Seq2Seq) else network.embedding
        config = self.stack.config
        self.is_causal_only = (
            self.stack.bias is None and not config.sliding_window
        )  # causality alone decides who sees whom
        self.layers = [_block(self.stack.block_of(i), i, config.window_of(i)) for i in range(config.layers)]  # type: ignore[arg-type]
        self.norm = None if self.stack.norm is None else make_norm(self.stack.norm)
        self.out = None if self.head.out is None or self.head.config.normalize else make_linear(self.head.out)
        self.position_table: Tensor | None = None  # position vectors (1, L, C), added to the token embedding
        self.table_length = 0  # L
        self.source_mask: tuple[CrossCache, Tensor] | None = None  # the current sources and their mask
        self.beams: BeamSlots | None = None  # while rows hold several beams

    def __call__(self, ids: Tensor, cache: SelfCache, cross_cache: CrossCache | None) -> Tensor:
        """The newest token of each sequence (R,) → the logits (R, V) of the next one."""
        if self.beams is None:
            ids = ids[:, None]  # (N, T)
            place = make_layout(
                ids, None, cache.next_positions(ids, None)
            )  # (N, T), or (1, T) if all rows are at the same position
        else:
            ids, place = ids.view(-1, self.beams.num_beams), self.beams.advance()
        keys = cache.reserve(place)
        x = self.embedding.combine(ids, self._position_vectors(place.positions, cache))  # (N, T, C)
        masks = self._masks(x, place, keys)
        rotaries = self.stack.rotary_tables(x, place)
        now = StepContext(ids.shape[0], cache, cross_cache, masks, rotaries, self._source_mask(x, cross_cache))
        x = x.flatten(0, 1)
        for layer in self.layers:
            x = layer(x, now)
        if self.norm is not None:
            x = self.norm(x)
        if self.out is None or self.head.out is None:
            return self.head.project(x)
        return self.out(self.head.transform(x).to(self.head.out.weight.dtype))

    def expand_beams(self, cache: SelfCache, num_beams: int) -> None:
        """From now on each row of the cache holds `num_beams` beams, which share what it holds now."""
        assert self.beams is None, "a run forks once"
        self.beams = BeamSlots(cache, num_beams, self.embedding.token.weight.dtype)

    def reorder(self, cache: SelfCache, parents: Tensor) -> None:
        """Sequence r continues sequence `parents[r]`; with beams, a beam of the same row."""
        if self.beams is None:
            reorder_cache(cache, parents)
        else:
            self.beams.reorder(parents)

    def _position_vectors(self, positions: Tensor, cache: SelfCache) -> Tensor | None:
        """The position vectors of the newest tokens, from a table that is extended when the cache grows."""
        if self.table_length < cache.capacity:
            self.table_length = cache.capacity
            config = self.stack.config
            last = min(self.table_length, config.max_positions) if config.has_max_positions else self.table_length
            self.position_table = self.embedding.position_vectors(torch.arange(last)[None])
            if self.position_table is not None:
                self.position_table = self.position_table.to(self.embedding.token.weight.dtype)
        return None if self.position_table is None else self.position_table[0, positions]

    def _masks(self, x: Tensor, layout: SequenceLayout, keys: SequenceLayout) -> dict[int, Tensor | None]:
        """What is added to the attention scores, by window."""
        sight = None if self.beams is None else self.beams.mask[:, None]  # (N, 1, T, S)
        if self.is_causal_only and sight is not None:
            return {0: sight}  # it masks padding too
        if self.is_causal_only and keys.document_ids is None:
            return {}
        masks: dict[int, Tensor | None] = {}
        for window, rendered in self.stack.prepare_masks(x, layout, keys).items():
            mask = rendered.attn_mask
            if mask is not None and not mask.is_floating_point():
                mask = torch.zeros_like(mask, dtype=x.dtype).masked_fill_(~mask, NEG_INF)
            masks[window] = mask if sight is None else sight if mask is None else mask + sight
        return masks

    def _source_mask(self, x: Tensor, cross_cache: CrossCache | None) -> Tensor | None:
        """The mask over the sources; computed again only when they change."""
        if cross_cache is None or cross_cache.layout.document_ids is None:
            return None
        if self.source_mask is None or self.source_mask[0] is not cross_cache:
            unseen = (cross_cache.layout.document_ids == 0)[:, None, None]
            self.source_mask = (cross_cache, torch.zeros_like(unseen, dtype=x.dtype).masked_fill_(unseen, NEG_INF))
        return self.source_mask[1]


def _block(block: Block, layer: int, window: int) -> SublayerFunction:
    attend = residual_sublayer(
        block.attention_sub, _self_attention(block.attention, layer, window), block.attention.out
    )
    think = residual_sublayer(block.ffn_sub, make_feedforward(block.ffn), block.ffn.down)
    if block.parallel:
        return parallel_block(attend, think)
    parts = [(block.attention_sub, attend), (block.ffn_sub, think)]
    if block.cross is not None and block.cross_sub is not None:
        attend_source = residual_sublayer(block.cross_sub, _cross_attention(block.cross, layer), block.cross.out)
        parts.insert(1, (block.cross_sub, attend_source))
    return serial_block(parts)


def _self_attention(attention: SelfAttention, layer: int, window: int) -> SublayerFunction:
    qkv, attend, width = make_linear(attention.qkv), _make_attention(attention), attention.head_dim
    every, split = attention.heads + 2 * attention.kv_heads, (attention.heads, attention.kv_heads, attention.kv_heads)
    q_norm = None if attention.q_norm is None else make_norm(attention.q_norm)
    k_norm = None if attention.k_norm is None else make_norm(attention.k_norm)

    def part(x: Tensor, now: StepContext) -> Tensor:
        heads = qkv(x).view(now.cache_rows, -1, every, width).transpose(1, 2)  # (N, H + 2KV, T, D)
        q, k, v = torch.split_with_sizes(heads, split, 1)
        if q_norm is not None and k_norm is not None:
            q, k = q_norm(q), k_norm(k)
        if now.rotaries:
            rotary = now.rotaries[window]
            q, k = rotary.rotate(q), rotary.rotate(k)
        k, v = now.cache.write(layer, k, v)
        return attend(q, k, v, now.masks.get(window))

    return part


def _cross_attention(attention: CrossAttention, layer: int) -> SublayerFunction:
    project, attend = make_linear(attention.q), _make_attention(attention)
    heads, width = attention.heads, attention.head_dim
    q_norm = None if attention.q_norm is None else make_norm(attention.q_norm)

    def part(x: Tensor, now: StepContext) -> Tensor:
        assert now.cross_cache is not None
        k, v = now.cross_cache.keys[layer], now.cross_cache.values[layer]
        q = project(x).view(k.shape[0], -1, heads, width).transpose(1, 2)  # (sources, H, T, D)
        if q_norm is not None:
            q = q_norm(q)
        return attend(q, k, v, now.source_mask)

    return part


def _make_attention(attention: Attention) -> Callable[[Tensor, Tensor, Tensor, Tensor | None], Tensor]:
    """softmax(QKᵀ · scale + mask) V for few queries, q (N, H, T, D), k and v (N, KV, S, D) → (N · T, H · D)."""
    scale, grouped = attention.scale, attention.heads != attention.kv_heads
    nothing = torch.zeros((), dtype=attention.out.weight.dtype)

    def attend(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
        rows, heads, queries, width = q.shape
        if rows * queries < MIN_BATCHED_QUERIES or q.dtype not in (torch.float32, torch.float64):
            z = F.scaled_dot_product_attention(q, k, v, mask, scale=scale, enable_gqa=grouped)
        else:
            # Torch's kernel takes one row and head after another; batched products have less overhead.
            groups, length = rows * k.shape[1], k.shape[2]
            q = q.reshape(groups, -1, width)  # the queries of a group of heads side by side
            keys, values = (
                t.reshape(groups, length, width) for t in (k, v)
            )  # pages have another layout and are copied
            scores = torch.baddbmm(nothing, q, keys.transpose(1, 2), beta=0, alpha=scale)
            if mask is not None:
                scores.view(rows, heads, queries, length).add_(mask)
            z = torch.bmm(scores.softmax(-1), values).view(rows, heads, queries, width)
        return z.transpose(1, 2).reshape(rows * queries, heads * width)

    return attend
