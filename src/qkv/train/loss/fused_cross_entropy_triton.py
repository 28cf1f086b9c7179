"""Cross-entropy and its gradient on a GPU, in place: a row of logits is read once from memory and written once.

The first pass finds the largest logit and the sum of the others beside it, the second writes probabilities less what
they should be over the logits; in between the row stays in the cache. `fused_loss._loss_and_gradient` is the reference.

N rows, V outputs
"""

import torch
import triton
import triton.language as tl
from torch import Tensor, library

from qkv.blocks.kernels.gpu import device_guard
from qkv.data.objectives import IGNORE_INDEX

BLOCK, NUM_WARPS = 2048, 4


@triton.jit
def cross_entropy_kernel(
    logits_ptr,
    bias_ptr,
    target_ptr,
    loss_ptr,
    stride,
    smoothing,
    OUTPUTS: tl.constexpr,
    WIDTH: tl.constexpr,  # OUTPUTS and the columns that only round up the matrix, so that loads are wide ones
    BIAS: tl.constexpr,
    SMOOTH: tl.constexpr,
    NOTHING: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    logits = logits_ptr + row * stride
    target = tl.load(target_ptr + row)
    counts = target != NOTHING
    lane = tl.arange(0, BLOCK)
    # Each lane keeps a largest logit and a sum of its own: nobody waits for the others before the end.
    most = tl.full((BLOCK,), -1e30, dtype=tl.float32)
    total = tl.zeros((BLOCK,), dtype=tl.float32)
    plain = tl.zeros((BLOCK,), dtype=tl.float32)
    for begin in range(0, WIDTH, BLOCK):
        ids = begin + lane
        x = tl.load(logits + ids, mask=(ids < WIDTH) & counts, other=0.0).to(tl.float32)
        if BIAS:
            x += tl.load(bias_ptr + ids, mask=ids < OUTPUTS, other=0.0).to(tl.float32)
        if SMOOTH:
            plain += tl.where(ids < OUTPUTS, x, 0.0)
        x = tl.where(ids < OUTPUTS, x, -1e30)
        small = tl.exp(-tl.abs(x - most))
        total = tl.where(x > most, total * small + 1.0, total + small)
        most = tl.maximum(most, x)
    top = tl.max(most, axis=0)
    rest = tl.log(tl.sum(total * tl.exp(most - top), axis=0))
    level = top + rest
    said = tl.load(logits + tl.where(counts, target, 0)).to(tl.float32)
    if BIAS:
        said += tl.load(bias_ptr + tl.where(counts, target, 0)).to(tl.float32)
    loss = rest + (1.0 - smoothing) * (top - said)  # differences first: a large level would swallow a small loss
    if SMOOTH:
        loss += smoothing * (top - tl.sum(plain, axis=0) / OUTPUTS)
    tl.store(loss_ptr + row, tl.where(counts, loss, 0.0))
    tl.debug_barrier()  # all have read the target's logit before one writes over it
    for begin in range(0, WIDTH, BLOCK):
        ids = begin + lane
        x = tl.load(logits + ids, mask=(ids < WIDTH) & counts, other=0.0).to(tl.float32)
        if BIAS:
            x += tl.load(bias_ptr + ids, mask=ids < OUTPUTS, other=0.0).to(tl.float32)
        back = tl.exp(x - level) - smoothing / OUTPUTS - tl.where(ids == target, 1.0 - smoothing, 0.0)
        back = tl.where((ids < OUTPUTS) & counts, back, 0.0)
        tl.store(logits + ids, back.to(logits_ptr.dtype.element_ty), mask=ids < WIDTH)


@library.custom_op("qkv::loss_in_place", mutates_args=("logits",))
def cross_entropy_in_place(
    logits: Tensor, bias: Tensor | None, targets: Tensor, smoothing: float, outputs: int
) -> Tensor:
    """The loss (N,) of each row of logits (N, ≥ V), in float32; the logits become its gradient."""
    if logits.stride(1) != 1:
        raise ValueError("logits must lie row by row")
    losses = torch.empty(len(logits), device=logits.device, dtype=torch.float32)
    if not len(logits):
        return losses
    with device_guard(logits.device):
        cross_entropy_kernel[(len(logits),)](
            logits,
            logits if bias is None else bias,
            targets,
            losses,
            logits.stride(0),
            smoothing,
            OUTPUTS=outputs,
            WIDTH=logits.shape[1],
            BIAS=bias is not None,
            SMOOTH=smoothing > 0,
            NOTHING=IGNORE_INDEX,
            BLOCK=min(BLOCK, triton.next_power_of_2(logits.shape[1])),
            num_warps=NUM_WARPS,
        )
    return losses


@cross_entropy_in_place.register_fake
def _(logits: Tensor, bias: Tensor | None, targets: Tensor, smoothing: float, outputs: int) -> Tensor:
    return torch.empty(len(logits), device=logits.device, dtype=torch.float32)
