"""A decoding step over a paged cache with the kernel of `paged_kernels`. `PagedCache` with `Stack` is the reference.

The reference copies the pages of all sequences into one tensor in every layer. The kernel reads them where they are.
It supports decoders without biases of the scores and without norms of queries and keys.

R sequences, N pages of a sequence, C width, V vocabulary
"""

from functools import partial
from typing import Any, cast

import torch
import triton
from torch import Tensor

from qkv.blocks import SequenceLayout
from qkv.blocks.attention import SelfAttention
from qkv.blocks.block import Block
from qkv.decode.engine import paged_kernels as kernels
from qkv.decode.engine.pages import PagePool
from qkv.decode.gpu import batch_kernels, batched_blocks, static_runner
from qkv.decode.gpu.batched_blocks import AlignedOutput, BatchedBlocks
from qkv.decode.gpu.batched_runner import argmax_of_parts
from qkv.models import Network

MAX_TABLE_POSITIONS = 2**15
"""The position tables have at most this number of positions. The reference runs longer sequences."""
SLOTS_PER_BLOCK, WARPS = 32, 1
"""The slots that a program reads at a time, and its number of warps."""


def is_supported(network: Network) -> bool:
    """Return whether the kernel implements this network."""
    if network.has_source or not static_runner.is_supported(network):
        return False
    config, dtype = network.output_stack.config, network.output_embedding.token.weight.dtype
    is_power_of_two = config.head_dim & (config.head_dim - 1) == 0
    has_bias = config.position in ("alibi", "t5")
    changes_logits = network.head.config.normalize or network.head.config.logit_cap
    is_plain = config.qk_norm == "none" and dtype != torch.float64 and not changes_logits
    return is_power_of_two and not has_bias and is_plain and not network.output_embedding.token.weight.is_inference()


class PagedStep:
    """Runs a decoder on the newest token of each sequence."""

    def __init__(self, network: Network, page_pool: PagePool) -> None:
        self.page_pool, self.embedding = page_pool, network.output_embedding
        self.stack, self.head = network.output_stack, network.head
        config = self.stack.config
        self.max_length = min(page_pool.num_pages * page_pool.page_size, MAX_TABLE_POSITIONS)
        if config.has_max_positions:
            self.max_length = min(self.max_length, config.max_positions)
        every = torch.arange(self.max_length, device=page_pool.keys[0].device)[None]
        self.rotaries = self.stack.rotary_tables(page_pool.keys[0], SequenceLayout(None, every))
        vectors = self.embedding.position_vectors(every)
        self.position_table = None if vectors is None else vectors[0].to(self.embedding.token.weight.dtype)  # (P, C)
        self.output = AlignedOutput(network.head)
        self.blocks = BatchedBlocks(self.stack) if batched_blocks.is_supported(self.stack) else None

    def refresh_weights(self) -> None:
        """Copy the output matrix again if it has changed. Call it before a graph of this step is replayed."""
        self.output.refresh()

    def __call__(self, ids: Tensor, positions: Tensor, page_tables: Tensor) -> Tensor:
        """Read ids (R, 1) at positions (R, 1), and return the logits (R, V). `page_tables` are (R, N).

        The logits may have more columns than the vocabulary, which are −∞. Positions and page tables are columns of one
        tensor, so that their rows have the same stride.
        """
        x = self.embedding.combine(ids, None if self.position_table is None else self.position_table[positions])

        def attend(layer: int, block: Block, h: Tensor) -> Tensor:
            return self._attend(block.attention, h, layer, positions, page_tables)

        if self.blocks is not None:
            return self.output(self.blocks(x, attend)[:, 0])
        for layer in range(self.stack.config.layers):
            block = cast(Block, self.stack.block_of(layer))
            x = static_runner.run_block(block, x, partial(attend, layer, block))
        if self.stack.norm is not None:
            x = self.stack.norm(x)
        return self.output(x[:, 0])

    def choose(self, logits: Tensor, slots: Tensor, tokens: Tensor) -> Tensor:
        """Write the argmax of each row to `tokens` at its slot (R, 1).

        Returns a tensor (R, 3): the argmax, its log-probability and its logit.
        """
        parts = argmax_of_parts(logits)
        output = logits.new_empty(len(logits), 3, dtype=torch.float64)
        batch_kernels.store_rows[(len(logits),)](
            *parts,
            slots,
            tokens,
            output,
            slots.stride(0),
            PARTS=parts[0].shape[1],
            PADDED=triton.next_power_of_2(parts[0].shape[1]),
            num_warps=1,
        )
        return output

    def _attend(
        self, attention: SelfAttention, h: Tensor, layer: int, positions: Tensor, page_tables: Tensor
    ) -> Tensor:
        qkv = attention.qkv(h)
        window = self.stack.config.window_of(layer)
        table: Any = self.rotaries.get(window)
        out = qkv.new_empty(len(h), 1, attention.heads * attention.head_dim)
        kernels.paged_attention[(len(h), attention.heads)](
            qkv,
            qkv if table is None else table.cos,
            qkv if table is None else table.sin,
            positions,
            page_tables,
            self.page_pool.keys[layer],
            self.page_pool.values[layer],
            out,
            positions.stride(0),
            attention.scale,
            H=attention.heads,
            KV=attention.kv_heads,
            D=attention.head_dim,
            ROTARY_DIM=0 if table is None else table.cos.shape[-1],
            PAGE_SIZE=self.page_pool.page_size,
            WINDOW=window,
            BLOCK=SLOTS_PER_BLOCK,
            num_warps=WARPS,
        )
        return cast(Tensor, attention.out(out))
