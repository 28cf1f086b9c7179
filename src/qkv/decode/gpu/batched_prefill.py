"""Prefill of a decoder with the kernels of `batch_kernels`: rotary embedding, norms and gates in one kernel each.

Attention runs in the kernels of `blocks/kernels`. `runner.next_logits` is the reference.

R sequences, T tokens, C width, V vocabulary
"""

from typing import Any

import triton
from torch import Tensor

from qkv.blocks import CrossCache, Inputs, KernelHints, SelfCache, Tap, make_layout
from qkv.blocks.attention import split_heads
from qkv.blocks.block import Block
from qkv.blocks.position import Rotary
from qkv.decode.gpu import batch_kernels as kernels
from qkv.decode.gpu import batched_blocks
from qkv.decode.gpu.batched_blocks import BatchedBlocks
from qkv.decode.runner import next_logits as reference_logits
from qkv.decode.support import is_unmodified
from qkv.models import Network

MIN_TOKENS = 256
"""The reference reads shorter prompts, for which compiling the kernels would take longer than it saves."""


def is_supported(network: Network) -> bool:
    """Return whether the kernels implement this network."""
    return not network.has_source and is_unmodified(network) and batched_blocks.is_supported(network.output_stack)


def next_logits(
    network: Any,
    inputs: Inputs,
    *,
    cache: SelfCache,
    memory: CrossCache | None = None,
    tap: Tap | None = None,
) -> Tensor:
    """Return the logits (R, V) of the tokens after `inputs` (R, T), as `runner.next_logits` does."""
    if inputs.ids.numel() < MIN_TOKENS or tap is not None:
        return reference_logits(network, inputs, cache=cache, memory=memory, tap=tap)
    ids, document_ids, positions = inputs.ids, inputs.document_ids, inputs.positions
    stack = network.output_stack
    positions = cache.next_positions(ids, document_ids) if positions is None else positions
    layout = make_layout(ids, document_ids, positions)
    x = network.output_embedding(ids, layout.positions)
    hints = KernelHints(is_default=document_ids is None and positions is None)
    masks = stack.prepare_masks(x, layout, cache.add_layout(layout), hints)
    rotaries = stack.rotary_tables(x, layout)

    def attend(layer: int, block: Block, h: Tensor) -> Tensor:
        attention, window = block.attention, stack.config.window_of(layer)
        mask = masks[window]
        qkv = attention.qkv(h if mask.kernel == "varlen" else mask.mask.query.zero_padding(h))
        if window in rotaries and attention.q_norm is None:
            rotate_in_place(qkv, rotaries[window], attention.heads + attention.kv_heads, attention.head_dim)
        q, k, v = qkv.split(attention.split_sizes, dim=-1)
        q, k, v = (split_heads(t, t.shape[-1] // attention.head_dim) for t in (q, k, v))
        if attention.q_norm is not None and attention.k_norm is not None:
            q, k = attention.q_norm(q), attention.k_norm(k)
            if window in rotaries:
                q, k = rotaries[window].rotate(q), rotaries[window].rotate(k)
        k, v = cache.write(layer, k, v)
        return attention.attend(q, k, v, mask, None)

    x = BatchedBlocks(stack)(x, attend)
    logits: Tensor = network.head.project(x[:, -1])
    return logits


def rotate_in_place(qkv: Tensor, rotary: Rotary, heads: int, head_dim: int) -> None:
    """Rotate the first `heads` heads of each token of qkv (R, T, …)."""
    rotary_dim, tokens = rotary.cos.shape[-1], qkv.shape[0] * qkv.shape[1]
    # With one token in each sequence, `reshape` returns a view in which all rows are the same memory; the kernel needs
    # a row for each token.
    cos, sin = (t.expand(len(qkv), 1, -1, -1).reshape(tokens, -1).contiguous() for t in (rotary.cos, rotary.sin))
    kernels.rotate_rows[(tokens,)](
        qkv,
        cos,
        sin,
        qkv.stride(1),
        HEADS=heads,
        PADDED=triton.next_power_of_2(heads),
        D=head_dim,
        ROTARY_DIM=rotary_dim,
        PADDED_HALF=triton.next_power_of_2(rotary_dim // 2),
        num_warps=4,
    )
