"""Choose an attention kernel. Every kernel gives the same result as `eager` in `blocks/attention.py`.

B batch, T queries, S keys, H heads, C model width
"""

from collections.abc import Callable

import torch
from torch import Tensor

from qkv.blocks.config import AttentionKernel
from qkv.blocks.kernels.flex import flex, make_block_mask
from qkv.blocks.kernels.prepared import NO_HINTS, KernelHints, PreparedMask
from qkv.blocks.kernels.sdpa import prepare_attn_mask, sdpa
from qkv.blocks.kernels.varlen import make_offsets, varlen
from qkv.blocks.mask import Mask

MAX_DENSE_LENGTH = 512
"""Packed sequences of up to this many tokens use a dense mask: it costs less than the document
offsets that varlen needs."""
KERNELS: dict[str, Callable[..., Tensor]] = {"sdpa": sdpa, "flex": flex, "varlen": varlen}


def choose_kernel(
    mask: Mask, x: Tensor, bias: Tensor | None, dropout: float, hints: KernelHints = NO_HINTS
) -> AttentionKernel:
    """Return the fastest kernel for a mask: varlen for long packed sequences in half precision on a GPU, else SDPA.

    `x` (B, T, C) is the input of the stack. `hints` describe the queries.
    """
    packed = mask.query.document_ids is not None and hints.max_documents > 0 and x.shape[1] > MAX_DENSE_LENGTH
    dtype = torch.get_autocast_dtype("cuda") if torch.is_autocast_enabled("cuda") else x.dtype
    half = dtype in (torch.float16, torch.bfloat16)
    if packed and x.is_cuda and half and bias is None and not dropout:
        return "varlen"
    return "sdpa"


def prepare_mask(
    mask: Mask,
    x: Tensor,
    *,
    kernel: AttentionKernel = "auto",
    bias: Tensor | None = None,
    dropout: float = 0.0,
    query_hints: KernelHints = NO_HINTS,
    key_hints: KernelHints = NO_HINTS,
) -> PreparedMask:
    """Convert a mask to the form that the kernel reads. `x` (B, T, C) gives the batch size, dtype and device.

    If the requested kernel does not support dropout, the bias or the positions, the result is for SDPA instead.
    """
    if kernel == "auto":
        kernel = choose_kernel(mask, x, bias, dropout, query_hints)
    by_position = query_hints.repeats_positions and (mask.causal or bool(mask.window))
    if kernel in ("flex", "varlen") and (dropout or (kernel == "varlen" and (bias is not None or by_position))):
        kernel = "sdpa"  # flex and varlen have no dropout; varlen takes no bias and compares indices, not positions
    prepared = PreparedMask(mask, kernel, bias)
    plain_causal = mask.causal and not mask.window and mask.query is mask.key and query_hints.is_default
    if kernel == "flex":
        prepared.block_mask = make_block_mask(mask)
    elif kernel == "varlen":
        prepared.offsets = make_offsets(mask, x.shape[0], query_hints, key_hints)
    elif kernel == "sdpa" and not (bias is None and (mask.allows_all or plain_causal)):
        prepare_attn_mask(prepared, x)
    return prepared
