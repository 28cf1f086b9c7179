"""Which attention kernel runs. All of them compute what `eager` in `blocks/attention.py` computes.

B batch, T queries, S keys, H heads, C model width
"""

from collections.abc import Callable

import torch
from torch import Tensor

from qkv.blocks.config import AttentionKernel
from qkv.blocks.kernels.flex import flex, make_block_mask
from qkv.blocks.kernels.prepared import NO_HINTS, KernelHints, PreparedMask
from qkv.blocks.kernels.sdpa import prepare_dense, sdpa
from qkv.blocks.kernels.varlen import make_offsets, varlen
from qkv.blocks.mask import Mask

MAX_DENSE_LENGTH = 512
"""Up to this length, a dense mask over a packed sequence costs less than finding its documents."""
KERNELS: dict[str, Callable[..., Tensor]] = {"sdpa": sdpa, "flex": flex, "varlen": varlen}


def choose_kernel(
    mask: Mask, x: Tensor, bias: Tensor | None, dropout: float, hints: KernelHints = NO_HINTS
) -> AttentionKernel:
    """The fastest kernel for a mask: varlen for long packed sequences in half precision on a GPU, else SDPA.

    `hints` are those of the queries.
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
    """Convert a mask to what the kernel reads. `x` (B, T, C) gives batch size, dtype and device."""
    if kernel == "auto":
        kernel = choose_kernel(mask, x, bias, dropout, query_hints)
    if kernel in ("flex", "varlen") and (dropout or (kernel == "varlen" and bias is not None)):
        kernel = "sdpa"  # neither kernel has dropout, and variable-length attention takes no bias
    prepared = PreparedMask(mask, kernel, bias)
    plain_causal = mask.causal and not mask.window and mask.query is mask.key and query_hints.in_order
    if kernel == "flex":
        prepared.block_mask = make_block_mask(mask)
    elif kernel == "varlen":
        prepared.offsets = make_offsets(mask, x.shape[0], query_hints, key_hints)
    elif kernel == "sdpa" and not (bias is None and (mask.is_full or plain_causal)):
        prepare_dense(prepared, x)
    return prepared
