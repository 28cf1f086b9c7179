"""Attention that reads a short causal convolution of its input: yₜ = xₜ + Σⱼ wⱼ · xₜ₋ⱼ, for j = 1 … 3, in each channel.

Primer (So et al. 2021) has such a convolution after the projections of queries, keys and values. Here it is before
them, as in the Canon layers of Allen-Zhu (2025): a token can then attend by its last words, and not only by itself.
"""

import torch
from torch import nn

import qkv
from qkv.blocks.attention import SelfAttention, make_attention
from qkv.blocks.cost import attention_cost

REACH = 3


class ShortConvolution(SelfAttention):
    def __init__(self, config):
        super().__init__(config)
        self.taps = nn.Parameter(torch.zeros(REACH, config.width))  # at first, the convolution changes nothing

    def forward(self, x, mask, rotary=None, cache=None, tap=None):
        before = x.new_zeros(len(x), REACH, x.shape[-1]) if cache is None else cache.state["recent"].to(x.dtype)
        layout = mask.mask.key if cache is None else mask.mask.query  # of the tokens in x
        x = layout.zero_padding(x)
        inputs = torch.cat([before, x], dim=1)  # (B, REACH + T, C)
        if cache is not None:
            cache.state["recent"] = inputs[:, -REACH:]
        positions = layout.positions[:, :, None]  # they count in each document, so none reads the one before it
        for j in range(1, REACH + 1):
            x = x + self.taps[j - 1] * inputs[:, REACH - j : -j] * (positions >= j)
        return super().forward(x, mask, rotary, cache, tap)


def build(config, *, cross=False):
    return make_attention(config, cross=True) if cross else ShortConvolution(config)


def cost(config, *, cross=False):
    attention = attention_cost(config, cross=cross)
    taps = 0 if cross else REACH * config.width
    return attention + qkv.PartCost({"attention": taps}, 2 * taps, activations=taps)


qkv.register_part(
    "attention",
    "short_convolution",
    build=build,
    cost=cost,
    sites=["q", "k", "v", "scores", "pattern", "z"],
    cache=lambda config: {"recent": (REACH, config.width)},
)
