"""Run the model in steps whose shapes and memory addresses never change, as CUDA graphs and the compiler require.

Each of N sequences reads T new tokens per step: one for greedy decoding and sampling, one per beam for beam search. All
beams of a prompt write into one row of the cache. A mask for each beam says which slots it attends to. For example, if
beam 0 of step 2 continues beam 1 of step 1, then in step 2 it attends to these slots:

    slots of one prompt     prompt │ step 1: beam 0, beam 1 │ step 2: beam 0, beam 1 │ …
    beam 0 attends to it    yes    │         –       yes    │         yes    –       │

When the search replaces beams, only the masks are copied. Keys and values are never moved, and a prompt is stored once
for all beams. The operators are the same as in `Stack`, which is the reference.

N sequences (prompts), T new tokens of each, S slots, H heads, KV key/value heads, G heads that share a key, D head dim
"""

from collections.abc import Callable
from typing import NamedTuple, cast

import torch
from torch import Tensor
from torch.nn import functional as F

from qkv.blocks import SequenceLayout
from qkv.blocks.attention import CrossAttention, SelfAttention, split_heads
from qkv.blocks.block import Block
from qkv.blocks.position import Rotary
from qkv.decode.filters import NEG_INF
from qkv.decode.runner import ModelRunner
from qkv.decode.support import EVERY_CHOICE, is_unmodified, supports
from qkv.models import Network

LENGTH_MULTIPLE = 64
"""Lengths are rounded up to a multiple of this number. Attention kernels would copy a mask whose length is not a
multiple of 16. Multiples of 64 also save compilations, because fewer lengths occur."""


class CacheView(NamedTuple):
    """Views of the first slots of the caches. Views of different length share memory."""

    keys: list[Tensor]  # per layer (N, KV, S, D)
    values: list[Tensor]
    mask: Tensor  # (N, T, S) 0 where new token t attends to the slot, −∞ elsewhere
    positions: Tensor  # (N, S) of the token that is, or will be, in the slot


class GatheredRotary(Rotary):
    """The rows of a rotary table at given positions."""

    def __init__(self, table: Rotary, positions: Tensor) -> None:
        self.cos, self.sin = table.cos[0, 0][positions][:, None], table.sin[0, 0][positions][:, None]  # (N, 1, 1, D)


def is_supported(network: Network) -> bool:
    """Return whether `StaticRunner` implements the modules of this network and its kernel. Training must be off."""
    if network.training or not supports(EVERY_CHOICE, network.output_stack.config) or not is_unmodified(network):
        return False
    return network.output_stack.kernel in ("auto", "sdpa")  # only a stack of attention blocks has kernels


class StaticRunner:
    """Takes over a new `ModelRunner`. It prefills the prompts, then runs steps in caches of fixed shape.

    `prefill_logits` (N, V) are the logits after the prompts. The method `logits` runs a step and returns its logits.
    """

    def __init__(
        self, runner: ModelRunner, max_new_tokens: int, *, num_beams: int = 1, network: Network | None = None
    ) -> None:
        self.network = runner.network if network is None else network
        self.stack, self.head, self.cross_cache = self.network.output_stack, self.network.head, runner.cross_cache
        self.embedding = self.network.output_embedding
        self.batch_size, self.prompt_length = runner.tokens.shape
        self.num_beams = num_beams
        self.prefill_logits = runner.prefill()
        device, dtype = runner.tokens.device, runner.cache.keys[0].dtype
        steps = max_new_tokens - 1  # the model never reads the last token
        self.num_slots = round_up(self.prompt_length + steps * num_beams)
        for tensors in (runner.cache.keys, runner.cache.values):
            for layer, tensor in enumerate(tensors):
                tensors[layer] = F.pad(
                    tensor[:, :, : self.prompt_length], (0, 0, 0, self.num_slots - self.prompt_length)
                )
        self.keys, self.values = runner.cache.keys, runner.cache.values
        real = runner.prompts.is_token
        self.mask = torch.full((self.batch_size, num_beams, self.num_slots), NEG_INF, device=device, dtype=dtype)
        self.mask[:, :, : self.prompt_length].masked_fill_(real[:, None], 0.0)
        self.next_positions = real.sum(1, keepdim=True)  # (N, 1) of the next token
        self.next_slots = self.prompt_length + torch.arange(num_beams, device=device)  # (T,) where the next tokens go
        ahead = torch.arange(self.num_slots - self.prompt_length, device=device) // num_beams
        self.slot_positions = torch.cat([(real.cumsum(1) - 1).clamp(min=0), self.next_positions + ahead], dim=1)
        every = torch.arange(self._max_position(max_new_tokens), device=device)[None]  # (1, P)
        self.rotaries = self.stack.rotary_tables(self.keys[0], SequenceLayout(None, every))
        vectors = self.embedding.position_vectors(every)
        self.position_table = None if vectors is None else vectors[0].to(self.embedding.token.weight.dtype)  # (P, C)
        self.source_mask = _source_mask(runner, dtype)

    def _max_position(self, max_new_tokens: int) -> int:
        """Return the number of positions that are needed, limited by the model's position table."""
        config = self.stack.config
        reach = round_up(self.prompt_length + max_new_tokens)
        return min(reach, config.max_positions) if config.has_max_positions else reach

    def view(self, num_slots: int) -> CacheView:
        """Return a view of the first `num_slots` slots of the caches."""
        cut = min(num_slots, self.num_slots)
        return CacheView(
            [t[:, :, :cut] for t in self.keys],
            [t[:, :, :cut] for t in self.values],
            self.mask[:, :, :cut],
            self.slot_positions[:, :cut],
        )

    def logits(self, token: Tensor, view: CacheView) -> Tensor:
        """Read the newest tokens (N, T), and return the logits (N·T, V) of the next tokens.

        Subclasses may return more than V columns. The additional ones are −∞.
        """
        # Each new token attends to its own slot.
        view.mask.scatter_(2, self.next_slots[None, :, None].expand(self.batch_size, -1, 1), 0.0)
        positions = None if self.position_table is None else self.position_table[self.next_positions]
        x = self.embedding.combine(token, positions)  # (N, T, C)
        rotaries = {window: GatheredRotary(table, self.next_positions) for window, table in self.rotaries.items()}
        masks = self._masks(view, x.dtype)
        for layer in range(self.stack.config.layers):
            x = self._block(x, layer, view, masks, rotaries)
        if self.stack.norm is not None:
            x = self.stack.norm(x)
        self.next_positions.add_(1)
        self.next_slots.add_(self.num_beams)
        return self.head.project(x).flatten(0, 1)

    def _block(
        self, x: Tensor, layer: int, view: CacheView, masks: dict[int, Tensor], rotaries: dict[int, GatheredRotary]
    ) -> Tensor:
        block = cast(Block, self.stack.block_of(layer))
        window = self.stack.config.window_of(layer)

        def attend(h: Tensor) -> Tensor:
            keys, values = view.keys[layer], view.values[layer]
            return self._attend(block.attention, h, keys, values, masks[window], rotaries.get(window))

        def attend_source(h: Tensor) -> Tensor:
            assert block.cross is not None
            return self._attend_source(block.cross, h, layer)

        return run_block(block, x, attend, attend_source)

    def _attend(
        self, attention: SelfAttention, h: Tensor, keys: Tensor, values: Tensor, mask: Tensor, rotary: Rotary | None
    ) -> Tensor:
        q, k, v = attention.qkv(h).split(attention.split_sizes, dim=-1)
        q, k = split_heads(q, attention.heads), split_heads(k, attention.kv_heads)
        if attention.q_norm is not None and attention.k_norm is not None:
            q, k = attention.q_norm(q), attention.k_norm(k)
        if rotary is not None:
            q, k = rotary.rotate(q), rotary.rotate(k)
        keys.index_copy_(2, self.next_slots, k.to(keys.dtype))
        values.index_copy_(2, self.next_slots, split_heads(v, attention.kv_heads).to(values.dtype))
        return cast(Tensor, attention.out(_grouped_attention(q, keys, values, mask, attention.scale)))

    def _attend_source(self, attention: CrossAttention, h: Tensor, layer: int) -> Tensor:
        assert self.cross_cache is not None
        q = split_heads(attention.q(h), attention.heads)
        if attention.q_norm is not None:
            q = attention.q_norm(q)
        keys, values = self.cross_cache.keys[layer], self.cross_cache.values[layer]
        return cast(Tensor, attention.out(_grouped_attention(q, keys, values, self.source_mask, attention.scale)))

    def _masks(self, view: CacheView, dtype: torch.dtype) -> dict[int, Tensor]:
        """Return the tensors that are added to the attention scores, by window size: (N, 1 or KV, 1 or G·T, S)."""
        config = self.stack.config
        groups = config.heads // config.kv_heads
        mask = view.mask[:, None]  # (N, 1, T, S)
        if self.stack.bias is not None:
            queries = self.next_positions.expand(-1, self.num_beams)
            bias = self.stack.bias(queries, view.positions, dtype)  # (N, H, T, S)
            mask = (mask + bias).to(view.mask.dtype).unflatten(1, (config.kv_heads, groups)).flatten(2, 3)
        elif self.num_beams > 1 and groups > 1:
            mask = mask.repeat(1, 1, groups, 1)
        distance = (self.next_positions - view.positions)[:, None, None]  # (N, 1, 1, S)
        windows = {config.window_of(layer) for layer in range(config.layers)}
        return {w: mask.masked_fill(distance > w, NEG_INF) if w else mask for w in windows}


def run_block(
    block: Block,
    x: Tensor,
    attend: Callable[[Tensor], Tensor],
    attend_source: Callable[[Tensor], Tensor] | None = None,
) -> Tensor:
    """Run a block with other implementations of its attention, x (N, T, C) → (N, T, C)."""
    if block.parallel:
        return x + block.attention_sub.residual_update(x, attend) + block.ffn_sub.residual_update(x, block.ffn)
    x = block.attention_sub(x, attend)
    if block.cross_sub is not None and attend_source is not None:
        x = block.cross_sub(x, attend_source)
    return cast(Tensor, block.ffn_sub(x, block.ffn))


def attend(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, scale: float) -> Tensor:
    """Return softmax(QKᵀ · scale + mask) V, for q (N, KV, G·T, D), k and v (N, KV, S, D)."""
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=scale)


def _grouped_attention(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, scale: float) -> Tensor:
    """Return the attention output (N, T, H · D). Heads that share a key become queries of one head.

    This is because torch's attention kernels with a mask do not support grouped heads.
    """
    rows, heads, new, width = q.shape
    kv_heads = k.shape[1]
    z = attend(q.reshape(rows, kv_heads, -1, width), k, v, mask, scale)
    return z.reshape(rows, heads, new, width).transpose(1, 2).flatten(2)


def round_up(count: int, multiple: int = LENGTH_MULTIPLE) -> int:
    """Round up to a multiple."""
    return -(-count // multiple) * multiple


def _source_mask(runner: ModelRunner, dtype: torch.dtype) -> Tensor | None:
    """Return a mask (N, 1, 1, S) with 0 at source tokens and −∞ at padding, or None if there is no padding."""
    if runner.cross_cache is None or runner.cross_cache.layout.document_ids is None:
        return None
    document_ids = runner.cross_cache.layout.document_ids
    mask = torch.zeros(
        len(document_ids), 1, 1, round_up(document_ids.shape[1]), device=document_ids.device, dtype=dtype
    )
    mask = mask[..., : document_ids.shape[1]]
    return mask.masked_fill_((document_ids == 0)[:, None, None], NEG_INF)
