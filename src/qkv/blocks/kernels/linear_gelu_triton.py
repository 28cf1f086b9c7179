"""The Triton kernels of the fused GELU: y = z · σ(p(z)) with z = x + b, and its gradient.

Both kinds of GELU are z · σ(p(z)) with an odd polynomial p. For gelu_tanh this is exact. For the erf GELU the error is
at most 1.2e-4 absolute, and 0.17 % relative for |z| < 5.5. That is below bfloat16 rounding.

A program processes several rows of a range of columns. So it loads the bias once, and it adds up the bias gradient of
its rows while it computes the gradient of x. At the end, the sums of all programs are added.

F columns: the width of a feed-forward layer
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor, library, nn
from torch.nn import functional as F

from qkv.blocks.kernels.gpu import device_guard

GELU_COEFFICIENTS = {
    # log Φ(x) − log Φ(−x), fitted for |x| < 5.5. Outside, the polynomial keeps growing, so that the sigmoid saturates.
    "gelu": (1.5934049453018608, 0.0756068525649949, -0.0009703515369699761, 8.682845895446185e-06),
    # 2 · √(2/π) · (x + 0.044715 x³)
    "gelu_tanh": (1.5957691216057308, 0.07135481627159544, 0.0, 0.0),
}
"""The coefficients of p(x) / x, in rising powers of x²."""
COLUMNS, UNROLLED = 1024, 4
"""The number of columns of a program, and the number of rows by which its loop is unrolled."""
FORWARD_TILE, BACKWARD_TILE = (8, 256), (32, 128)
"""(rows per program, columns per warp), tuned separately for the forward and the backward kernel."""
MAX_Z_SQUARED = tl.constexpr(1e4)
"""z² is clamped to this value, where the sigmoid is already saturated: higher powers could overflow."""


def linear_then_bias_gelu(kind: str, up: nn.Module, x: Tensor) -> Tensor | None:
    """Return GELU(up(x)), x (…, C) → (…, F), or None if no kernel supports it. Only bias and GELU are fused."""
    if not is_supported(kind, up, x):
        return None
    assert isinstance(up, nn.Linear)
    out: Tensor = bias_gelu(F.linear(x, up.weight), up.bias, list(GELU_COEFFICIENTS[kind]))
    return out


def is_supported(kind: str, up: nn.Module, x: Tensor) -> bool:
    """Whether the kernel supports this call: a plain linear map with a bias, in half precision on a GPU."""
    if kind not in GELU_COEFFICIENTS or type(up) is not nn.Linear or up.bias is None or not x.is_cuda:
        return False
    if hasattr(up.weight, "placements") or up._forward_hooks or up._forward_pre_hooks:
        return False  # a sharded weight, or a hook that must see the output of `up`
    autocast = torch.is_autocast_enabled(x.device.type) and x.dtype != torch.float64
    dtype = torch.get_autocast_dtype(x.device.type) if autocast else x.dtype
    return dtype == torch.bfloat16 or (dtype == torch.float16 and kind == "gelu_tanh")


@triton.jit
def sigmoid_of_polynomial(z, P0: tl.constexpr, P1: tl.constexpr, P2: tl.constexpr, P3: tl.constexpr):
    """Return σ(p(z))."""
    q = tl.minimum(z * z, MAX_Z_SQUARED)
    return 1.0 / (1.0 + tl.exp(-z * (P0 + q * (P1 + q * (P2 + q * P3)))))


@triton.jit
def gelu_forward(
    x_ptr, bias_ptr, out_ptr, rows,
    WIDTH: tl.constexpr, P0: tl.constexpr, P1: tl.constexpr, P2: tl.constexpr, P3: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, UNROLLED: tl.constexpr,
):  # fmt: skip
    """Compute z · σ(p(z)) for a block of rows and columns."""
    block = (tl.program_id(0) // tl.cdiv(WIDTH, COLUMNS)).to(tl.int64)
    column = tl.program_id(0) % tl.cdiv(WIDTH, COLUMNS) * COLUMNS + tl.arange(0, COLUMNS)
    bias = tl.load(bias_ptr + column, mask=column < WIDTH, other=0.0).to(tl.float32)
    for begin in range(0, ROWS, UNROLLED):
        for step in tl.static_range(UNROLLED):
            row = block * ROWS + begin + step
            inside = (column < WIDTH) & (row < rows)
            z = tl.load(x_ptr + row * WIDTH + column, mask=inside, other=0.0).to(tl.float32) + bias
            y = z * sigmoid_of_polynomial(z, P0, P1, P2, P3)
            tl.store(out_ptr + row * WIDTH + column, y.to(out_ptr.dtype.element_ty), mask=inside)


@triton.jit
def gelu_backward(
    grad_out_ptr, x_ptr, bias_ptr, grad_x_ptr, sum_ptr, rows,
    WIDTH: tl.constexpr, P0: tl.constexpr, P1: tl.constexpr, P2: tl.constexpr, P3: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, UNROLLED: tl.constexpr,
):  # fmt: skip
    """Compute the gradient of x, and the bias gradient summed over the rows of the block."""
    block = (tl.program_id(0) // tl.cdiv(WIDTH, COLUMNS)).to(tl.int64)
    column = tl.program_id(0) % tl.cdiv(WIDTH, COLUMNS) * COLUMNS + tl.arange(0, COLUMNS)
    bias = tl.load(bias_ptr + column, mask=column < WIDTH, other=0.0).to(tl.float32)
    total = tl.zeros((COLUMNS,), dtype=tl.float32)
    for begin in range(0, ROWS, UNROLLED):
        for step in tl.static_range(UNROLLED):
            row = block * ROWS + begin + step
            inside = (column < WIDTH) & (row < rows)
            z = tl.load(x_ptr + row * WIDTH + column, mask=inside, other=0.0).to(tl.float32) + bias
            grad_out = tl.load(grad_out_ptr + row * WIDTH + column, mask=inside, other=0.0).to(tl.float32)
            gate = sigmoid_of_polynomial(z, P0, P1, P2, P3)
            q = tl.minimum(z * z, MAX_Z_SQUARED)
            dp_dz = P0 + q * (3 * P1 + q * (5 * P2 + q * (7 * P3)))
            grad_x = grad_out * (gate + z * gate * (1.0 - gate) * dp_dz)
            tl.store(grad_x_ptr + row * WIDTH + column, grad_x.to(grad_x_ptr.dtype.element_ty), mask=inside)
            total += grad_x
    tl.store(sum_ptr + block * WIDTH + column, total, mask=column < WIDTH)


@library.custom_op("qkv::bias_gelu", mutates_args=())
def bias_gelu(x: Tensor, bias: Tensor, coefficients: list[float]) -> Tensor:
    """Return z · σ(p(z)) with z = x + b, for x (…, F) and b (F,)."""
    x, bias = x.contiguous(), bias.contiguous()
    out = torch.empty_like(x)
    rows, _, programs, constants = _launch_grid(x, coefficients, *FORWARD_TILE)
    if rows:
        with device_guard(x.device):
            gelu_forward[(programs,)](x, bias, out, rows, **constants)
    return out


@library.custom_op("qkv::bias_gelu_backward", mutates_args=())
def bias_gelu_backward(grad_out: Tensor, x: Tensor, bias: Tensor, coefficients: list[float]) -> tuple[Tensor, Tensor]:
    """Return the gradients of x and b, given the gradient of the output."""
    grad_out, x, bias = grad_out.contiguous(), x.contiguous(), bias.contiguous()
    grad_x = torch.empty_like(x)
    rows, blocks, programs, constants = _launch_grid(x, coefficients, *BACKWARD_TILE)
    sums = torch.empty(blocks, x.shape[-1], device=x.device, dtype=torch.float32)
    if rows:
        with device_guard(x.device):
            gelu_backward[(programs,)](grad_out, x, bias, grad_x, sums, rows, **constants)
    return grad_x, sums.sum(0).to(bias.dtype)


def _launch_grid(
    x: Tensor, coefficients: list[float], rows_per_program: int, columns_per_warp: int
) -> tuple[int, int, int, dict[str, Any]]:
    """Return the numbers of rows, row blocks and programs, and the constants that the kernel is compiled for."""
    width = x.shape[-1]
    rows = x.numel() // width
    columns = min(COLUMNS, triton.next_power_of_2(width))
    while columns > columns_per_warp and width % columns:  # avoid programs that reach beyond the last column
        columns //= 2
    blocks = triton.cdiv(rows, rows_per_program)
    constants = {f"P{k}": coefficient for k, coefficient in enumerate(coefficients)}
    constants |= {"WIDTH": width, "ROWS": rows_per_program, "COLUMNS": columns, "UNROLLED": UNROLLED}
    constants |= {"num_warps": max(1, columns // columns_per_warp)}
    return rows, blocks, blocks * triton.cdiv(width, columns), constants


@bias_gelu.register_fake
def _(x: Tensor, bias: Tensor, coefficients: list[float]) -> Tensor:
    return torch.empty(x.shape, device=x.device, dtype=x.dtype)


@bias_gelu_backward.register_fake
def _(grad_out: Tensor, x: Tensor, bias: Tensor, coefficients: list[float]) -> tuple[Tensor, Tensor]:
    return torch.empty(x.shape, device=x.device, dtype=x.dtype), torch.empty_like(bias)


def _setup_context(ctx: Any, inputs: tuple[Tensor, Tensor, list[float]], output: Tensor) -> None:
    x, bias, ctx.coefficients = inputs
    ctx.save_for_backward(x, bias)


def _backward(ctx: Any, grad_out: Tensor) -> tuple[Tensor, Tensor, None]:
    x, bias = ctx.saved_tensors
    grad_x, grad_bias = bias_gelu_backward(grad_out, x, bias, ctx.coefficients)
    return grad_x, grad_bias, None


bias_gelu.register_autograd(_backward, setup_context=_setup_context)
