"""Reading sources on a CPU without reading their padding.

A batch of unequal sources laid out as a rectangle may be a third padding, and a CPU pays for every row of a product.
Here the tokens of all sources stand one after the other, and attention alone sees the rectangle. `Seq2Seq.encode` and
`remember` stay the reference.

R sources, S the longest, M tokens of all of them, KV key/value heads, D head width, C width
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from qkv.blocks import CrossCache, Place
from qkv.blocks.attention import CrossAttention, SelfAttention, Sight
from qkv.blocks.block import Block
from qkv.blocks.position import Rotary
from qkv.decode.flat import Part, adding, feedforward_of, linear_of, norm_of, parallel, serial
from qkv.models import Seq2Seq


class Rectangle(NamedTuple):
    """Where the tokens stand among R · S, and what attention needs to know there."""

    rows: int
    longest: int
    places: Tensor | None  # (M,) the place of each token; None where there is no padding
    sights: dict[int, Sight]  # by window
    rotaries: dict[int, Rotary]  # by window

    def lay(self, x: Tensor) -> Tensor:
        """(M, F) → (R, S, F), zeros in between."""
        if self.places is not None:
            x = x.new_zeros(self.rows * self.longest, x.shape[1]).index_copy_(0, self.places, x)
        return x.view(self.rows, self.longest, -1)

    def pick(self, x: Tensor) -> Tensor:
        """(R, S, F) → (M, F)."""
        x = x.flatten(0, 1)
        return x if self.places is None else x.index_select(0, self.places)


def read(network: Seq2Seq, sources: Sequence[Sequence[int]]) -> CrossCache:
    """Every decoder layer's keys and values of these sources."""
    stack, lengths = network.encoder, [len(source) for source in sources]
    longest = max(lengths)
    ids = torch.tensor([token for source in sources for token in source])
    position = torch.cat([torch.arange(length) for length in lengths])
    every = torch.arange(longest)[None]  # (1, S)
    place, index = Place(None, every), None
    if min(lengths) < longest:
        segment = (every < torch.tensor(lengths)[:, None]).long()  # (R, S)
        place, index = Place(segment, every), segment.flatten().nonzero()[:, 0]
    x = network.source_embedding(ids[None], position[None])[0]  # (M, C)
    like = x.new_empty(len(sources), longest, 0)
    shape = Rectangle(len(sources), longest, index, stack.sights(like, place, place), stack.rotaries(like, place))
    for layer in range(stack.config.layers):
        x = _block(stack.block_of(layer), stack.config.window_of(layer))(x, shape)  # type: ignore[arg-type]
    if stack.norm is not None:
        x = stack.norm(x)
    blocks = [network.decoder.block_of(layer) for layer in range(network.decoder.config.layers)]
    pairs = [_keys_values(block.cross, x, shape) for block in blocks]  # type: ignore[arg-type]
    return CrossCache([k for k, _ in pairs], [v for _, v in pairs], place)


def _block(block: Block, window: int) -> Part:
    attend = adding(block.attention_sub, _attention(block.attention, window), block.attention.out)
    think = adding(block.ffn_sub, feedforward_of(block.ffn), block.ffn.down)
    if block.parallel:
        return parallel(attend, think)
    return serial([(block.attention_sub, attend), (block.ffn_sub, think)])


def _attention(attention: SelfAttention, window: int) -> Part:
    qkv, width = linear_of(attention.qkv), attention.width
    split = (attention.heads, attention.kv_heads, attention.kv_heads)

    def part(x: Tensor, shape: Rectangle) -> Tensor:
        every = shape.lay(qkv(x)).unflatten(-1, (-1, width)).transpose(1, 2)  # (R, H + 2KV, S, D)
        q, k, v = every.split(split, dim=1)
        if attention.q_norm is not None and attention.k_norm is not None:
            q, k = attention.q_norm(q), attention.k_norm(k)
        if shape.rotaries:
            rotary = shape.rotaries[window]
            q, k = rotary.turn(q), rotary.turn(k)
        mask, grouped = shape.sights[window].dense, attention.heads != attention.kv_heads
        z = F.scaled_dot_product_attention(q, k, v, mask, scale=attention.scale, enable_gqa=grouped)
        return shape.pick(z.transpose(1, 2).flatten(2))

    return part


def _keys_values(cross: CrossAttention, x: Tensor, shape: Rectangle) -> tuple[Tensor, Tensor]:
    """One layer's keys and values (R, KV, S, D), zeros at padding."""
    both = shape.lay(linear_of(cross.kv)(x)).unflatten(-1, (2, cross.kv_heads, cross.width))
    k, v = both.permute(2, 0, 3, 1, 4).contiguous()
    return k if cross.k_norm is None else norm_of(cross.k_norm)(k), v
