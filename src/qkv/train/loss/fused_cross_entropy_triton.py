"""Cross-entropy and its gradient on a GPU, in place: each row of logits is read once from memory and written once.

The first pass finds the largest logit and the sum of exponentials. The second overwrites the logits with the
probabilities minus the target distribution; in between, the row stays in the cache. The reference is
`_loss_and_gradient` in `fused_cross_entropy.py`.

N positions with a label, V outputs
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
    WIDTH: tl.constexpr,  # OUTPUTS plus columns of padding, so that loads are aligned
    BIAS: tl.constexpr,
    SMOOTH: tl.constexpr,
    IGNORED: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Compute the loss of one position, and overwrite its logits with their gradient."""
    row = tl.program_id(0).to(tl.int64)
    logits = logits_ptr + row * stride
    target = tl.load(target_ptr + row)
    is_label = target != IGNORED
    lane = tl.arange(0, BLOCK)
    # Each lane keeps its own maximum and sum, so that lanes are combined only once, at the end.
    lane_max = tl.full((BLOCK,), -1e30, dtype=tl.float32)
    lane_sum = tl.zeros((BLOCK,), dtype=tl.float32)
    logit_sum = tl.zeros((BLOCK,), dtype=tl.float32)
    for begin in range(0, WIDTH, BLOCK):
        ids = begin + lane
        x = tl.load(logits + ids, mask=(ids < WIDTH) & is_label, other=0.0).to(tl.float32)
        if BIAS:
            x += tl.load(bias_ptr + ids, mask=ids < OUTPUTS, other=0.0).to(tl.float32)
        if SMOOTH:
            logit_sum += tl.where(ids < OUTPUTS, x, 0.0)
        x = tl.where(ids < OUTPUTS, x, -1e30)
        smaller = tl.exp(-tl.abs(x - lane_max))
        lane_sum = tl.where(x > lane_max, lane_sum * smaller + 1.0, lane_sum + smaller)
        lane_max = tl.maximum(lane_max, x)
    max_logit = tl.max(lane_max, axis=0)
    log_sum = tl.log(tl.sum(lane_sum * tl.exp(lane_max - max_logit), axis=0))
    log_normalizer = max_logit + log_sum
    target_logit = tl.load(logits + tl.where(is_label, target, 0)).to(tl.float32)
    if BIAS:
        target_logit += tl.load(bias_ptr + tl.where(is_label, target, 0)).to(tl.float32)
    # Subtract from max_logit first: if the logits are large, (max_logit + log_sum) − target_logit would round away a
    # small loss.
    loss = log_sum + (1.0 - smoothing) * (max_logit - target_logit)
    if SMOOTH:
        loss += smoothing * (max_logit - tl.sum(logit_sum, axis=0) / OUTPUTS)
    tl.store(loss_ptr + row, tl.where(is_label, loss, 0.0))
    tl.debug_barrier()  # every warp has read the target's logit before one overwrites it
    for begin in range(0, WIDTH, BLOCK):
        ids = begin + lane
        x = tl.load(logits + ids, mask=(ids < WIDTH) & is_label, other=0.0).to(tl.float32)
        if BIAS:
            x += tl.load(bias_ptr + ids, mask=ids < OUTPUTS, other=0.0).to(tl.float32)
        grad = tl.exp(x - log_normalizer) - smoothing / OUTPUTS - tl.where(ids == target, 1.0 - smoothing, 0.0)
        grad = tl.where((ids < OUTPUTS) & is_label, grad, 0.0)
        tl.store(logits + ids, grad.to(logits_ptr.dtype.element_ty), mask=ids < WIDTH)


@library.custom_op("qkv::cross_entropy_in_place", mutates_args=("logits",))
def cross_entropy_in_place(
    logits: Tensor, bias: Tensor | None, targets: Tensor, smoothing: float, outputs: int
) -> Tensor:
    """The loss (N,) of each row of logits (N, ≥ V), in float32. The logits are overwritten with its gradient."""
    if logits.stride(1) != 1:
        raise ValueError(f"logits have strides {logits.stride()}, but the kernel needs contiguous rows")
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
            IGNORED=IGNORE_INDEX,
            BLOCK=min(BLOCK, triton.next_power_of_2(logits.shape[1])),
            num_warps=NUM_WARPS,
        )
    return losses


@cross_entropy_in_place.register_fake
def _(logits: Tensor, bias: Tensor | None, targets: Tensor, smoothing: float, outputs: int) -> Tensor:
    return torch.empty(len(logits), device=logits.device, dtype=torch.float32)
