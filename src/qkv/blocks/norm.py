"""Normalisation, with an optional learned gain g and bias b.

LayerNorm (2016):  y = (x − μ) / √(σ² + ε) · g + b.      RMSNorm (2019):  y = x / √(mean(x²) + ε) · g.
Torch computes the statistics in at least float32, also for half-precision inputs. With `norm = "none"` every norm is
the identity.
"""

from torch import nn

from qkv.blocks.config import StackConfig
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
    return nn.RMSNorm(width, eps=config.norm_eps, elementwise_affine=config.norm_affine != "none")
