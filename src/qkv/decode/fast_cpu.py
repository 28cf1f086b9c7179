"""One decoding step on a CPU, with as little Python between the kernels as it takes.

In a step of one token a row the products are so small that the modules around them take longer than they do. Here a
decoder is laid out flat, once a run, as plain functions; a step only calls them. They are the operators of `Stack`,
on the same numbers in the same order, and `Stack` stays the reference; masks, biases and rotations are asked of it,
and only where there are any.

R rows, N sources, S source tokens, H heads, KV key/value heads, D head width, C width
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from qkv.blocks import CrossCache, Mask, Place, SelfCache, place_of
from qkv.blocks.attention import Attention, CrossAttention, SelfAttention, Sight, render
from qkv.blocks.block import Block
from qkv.blocks.position import Rotary
from qkv.decode.flat import Part, adding, feedforward_of, linear_of, norm_of, parallel, serial
from qkv.models import Decoder, Seq2Seq

MANY = 8
"""From so many rows on attention is written as batched products."""


class Moment(NamedTuple):
    """What all layers of one step share."""

    cache: SelfCache
    cross: CrossCache | None
    sights: dict[int, Sight]  # by window; empty where every row sees all of its slots
    rotaries: dict[int, Rotary]  # by window; empty where nothing turns
    source_mask: Tensor | None  # (N, 1, R/N, S), 0 or −∞; None where all of every source is seen


def fits(network: Decoder | Seq2Seq, cache: SelfCache) -> bool:
    """Whether a step may run here: on the CPU, in a cache that grows, with the kernel that is used here."""
    stack = network.decoder
    return not (network.training or cache.static or cache.cursor.is_cuda) and stack.kernel in ("auto", "sdpa")


class FastStep:
    """The decoder of a network as a function of the newest tokens, for one run."""

    def __init__(self, network: Decoder | Seq2Seq) -> None:
        self.stack, self.head = network.decoder, network.head
        self.embedding = network.target_embedding if isinstance(network, Seq2Seq) else network.embedding
        config = self.stack.config
        self.plain = self.stack.bias is None and not config.window  # causality alone decides who sees whom
        self.layers = [_block(self.stack.block_of(i), i, config.window_of(i)) for i in range(config.layers)]  # type: ignore[arg-type]
        self.norm = None if self.stack.norm is None else norm_of(self.stack.norm)
        self.places: Tensor | None = None  # what each position adds to the embedding, (1, L, C)
        self.reach = 0  # L
        self.source: tuple[CrossCache, int, Tensor | None] | None = None  # the newest source, rows, and their mask

    def __call__(self, ids: Tensor, cache: SelfCache, cross: CrossCache | None) -> Tensor:
        """The newest token of each row (R,) → the logits (R, V) of what comes next."""
        ids = ids[:, None]
        place = place_of(ids, None, cache.next_positions(ids, None))  # (1, 1), or (R, 1) where rows differ
        keys = cache.extend(place)
        x = self.embedding.join(ids, self._where(place.position, cache))  # (R, 1, C)
        sights = {} if self.plain and keys.segment is None else self.stack.sights(x, place, keys)
        now = Moment(cache, cross, sights, self.stack.rotaries(x, place), self._source_mask(x, place, cross))
        x = x[:, 0]
        for layer in self.layers:
            x = layer(x, now)
        return self.head.read(x if self.norm is None else self.norm(x))

    def _where(self, position: Tensor, cache: SelfCache) -> Tensor | None:
        """What positions add, out of a table that is made once: a row stands nowhere beyond its slots."""
        if self.reach < cache.length:
            self.reach = cache.length
            config = self.stack.config
            last = min(self.reach, config.max_positions) if config.limited else self.reach
            self.places = self.embedding.of_positions(torch.arange(last)[None])
            if self.places is not None:
                self.places = self.places.to(self.embedding.token.weight.dtype)
        return None if self.places is None else self.places[0, position]

    def _source_mask(self, x: Tensor, place: Place, cross: CrossCache | None) -> Tensor | None:
        """The mask over the sources, made anew only when they or their beams change."""
        if cross is None or cross.place.segment is None:
            return None
        if self.source is None or self.source[:2] != (cross, len(x)):
            beams = len(x) // cross.rows
            see = render(Mask(place.fold(beams), cross.place), x, kernel="sdpa").dense
            assert see is not None
            self.source = (cross, len(x), torch.zeros_like(see, dtype=x.dtype).masked_fill(~see, float("-inf")))
        return self.source[2]


def _block(block: Block, layer: int, window: int) -> Part:
    attend = adding(block.attention_sub, _self_attention(block.attention, layer, window), block.attention.out)
    think = adding(block.ffn_sub, feedforward_of(block.ffn), block.ffn.down)
    if block.parallel:
        return parallel(attend, think)
    parts = [(block.attention_sub, attend), (block.ffn_sub, think)]
    if block.cross is not None and block.cross_sub is not None:
        attend_source = adding(block.cross_sub, _cross_attention(block.cross, layer), block.cross.out)
        parts.insert(1, (block.cross_sub, attend_source))
    return serial(parts)


def _self_attention(attention: SelfAttention, layer: int, window: int) -> Part:
    qkv, attend = linear_of(attention.qkv), _kernel(attention)
    heads, kv_heads, width = attention.heads, attention.kv_heads, attention.width
    q_norm = None if attention.q_norm is None else norm_of(attention.q_norm)
    k_norm = None if attention.k_norm is None else norm_of(attention.k_norm)

    def part(x: Tensor, now: Moment) -> Tensor:
        rows = len(x)
        q, k, v = qkv(x).view(rows, -1, 1, width).split((heads, kv_heads, kv_heads), dim=1)  # (R, …, 1, D)
        if q_norm is not None and k_norm is not None:
            q, k = q_norm(q), k_norm(k)
        if now.rotaries:
            rotary = now.rotaries[window]
            q, k = rotary.turn(q), rotary.turn(k)
        k, v = now.cache.write(layer, k, v)
        return attend(q, k, v, now.sights[window].dense if now.sights else None).view(rows, -1)

    return part


def _cross_attention(attention: CrossAttention, layer: int) -> Part:
    project, attend = linear_of(attention.q), _kernel(attention)
    heads, width = attention.heads, attention.width
    q_norm = None if attention.q_norm is None else norm_of(attention.q_norm)

    def part(x: Tensor, now: Moment) -> Tensor:
        assert now.cross is not None
        k, v = now.cross.keys[layer], now.cross.values[layer]
        q = project(x).view(len(k), -1, heads, width).transpose(1, 2)  # (N, H, R/N, D)
        if q_norm is not None:
            q = q_norm(q)
        return attend(q, k, v, now.source_mask).transpose(1, 2).reshape(len(x), -1)

    return part


def _kernel(attention: Attention) -> Callable[[Tensor, Tensor, Tensor, Tensor | None], Tensor]:
    """softmax(QKᵀ · scale + mask) V for few queries, q (R, H, T, D), k and v (R, KV, S, D) → (R, H, T, D)."""
    scale, grouped = attention.scale, attention.heads != attention.kv_heads
    nothing = torch.zeros((), dtype=attention.out.weight.dtype)

    def attend(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
        exact = q.dtype in (torch.float32, torch.float64) and (mask is None or mask.is_floating_point())
        if len(q) < MANY or not exact:
            return F.scaled_dot_product_attention(q, k, v, mask, scale=scale, enable_gqa=grouped)
        # Torch's own kernel takes one row and head after the other; batched products have less to start anew.
        rows, kv_heads, length, width = k.shape
        queries = q.reshape(rows * kv_heads, -1, width)  # the queries of a group of heads stand side by side
        keys = k.view(rows * kv_heads, length, width).transpose(1, 2)
        if mask is None:
            scores = torch.baddbmm(nothing, queries, keys, beta=0, alpha=scale)
        else:
            mask = mask.expand(*q.shape[:3], length).reshape(len(queries), -1, length)
            scores = torch.baddbmm(mask, queries, keys, alpha=scale)
        return torch.bmm(scores.softmax(-1), v.view(rows * kv_heads, length, width)).view(q.shape)

    return attend
