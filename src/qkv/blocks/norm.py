"""Normalisation, with an optional learned gain g and bias b.

LayerNorm (2016):  y = (x − μ) / √(σ² + ε) · g + b.      RMSNorm (2019):  y = x / √(mean(x²) + ε) · g.
The statistics are computed in at least float32, also for half-precision inputs. With `norm = "none"` every norm is the
identity.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from qkv.blocks.config import StackConfig
from qkv.blocks.dropout import is_transformed
from qkv.blocks.parts import make_part


def make_norm(config: StackConfig, width: int) -> nn.Module:
    """Return a new norm of the kind in the config, for vectors of `width`."""
    norm: nn.Module = make_part("norm", config, width)
    return norm


def layer_norm(config: StackConfig, width: int) -> nn.LayerNorm:
    """Return a LayerNorm."""
    gain, bias = config.norm_affine != "none", config.norm_affine == "gain_bias"
    return nn.LayerNorm(width, eps=config.norm_eps, elementwise_affine=gain, bias=bias)


def rms_norm(config: StackConfig, width: int) -> nn.RMSNorm:
    """Return an RMSNorm, which has no bias."""
    return RMSNorm(width, eps=config.norm_eps, elementwise_affine=config.norm_affine != "none")


class RMSNorm(nn.RMSNorm):
    """Torch's RMSNorm. In bfloat16 training on a CPU, where torch has no kernel for it, `CpuRMSNorm` computes it."""

    def forward(self, x: Tensor) -> Tensor:
        """x (…, C) → (…, C)."""
        slow = x.device.type == "cpu" and x.dtype == torch.bfloat16 and x.dim() > 1 and x.requires_grad
        if not slow or self.weight is None or torch.compiler.is_compiling() or is_transformed():
            return super().forward(x)
        out: Tensor = CpuRMSNorm.apply(x, self.weight, self.eps)  # type: ignore[no-untyped-call]
        return out


class CpuRMSNorm(torch.autograd.Function):
    """RMSNorm of bfloat16 vectors in a few vectorised passes over float32 copies."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, eps: float | None) -> Tensor:
        """x (…, C) bfloat16, weight (C,) → (…, C) bfloat16."""
        x32 = x.float()
        inverse = (x32 * x32).mean(-1, keepdim=True).add_(torch.finfo(x.dtype).eps if eps is None else eps).rsqrt_()
        ctx.save_for_backward(x, weight, inverse)
        return x32.mul_(inverse).mul_(weight).to(x.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None]:
        """The gradients of x and of the weight."""
        x, weight, inverse = ctx.saved_tensors
        grad32, normed = grad.float(), x.float().mul_(inverse)
        grad_weight = (grad32 * normed).flatten(0, -2).sum(0)
        grad_normed = grad32 * weight
        mean = (grad_normed * normed).mean(-1, keepdim=True)
        grad_x = torch.addcmul(grad_normed, normed, mean, value=-1).mul_(inverse)
        return grad_x.to(x.dtype), grad_weight.to(weight.dtype), None
