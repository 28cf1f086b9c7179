"""Positions: attention alone sees a set, and these make it a sequence.

    added to the embedding     sinusoidal (the 2017 formula), learned (a table; it ends where training ended)
    turning queries and keys   rotary: a query and a key meet at an angle that depends on their distance alone
    added to the scores        ALiBi (a slope per head), T5 (a learned number per bucket of distances)

Tables are computed when they are needed, in float64 and then rounded: no buffer that `.bfloat16()` could ruin, and
no length at which it ends. At position 16,000 a bfloat16 table would be off by whole turns.

B batch, T queries, S keys, H heads, D head width, C width
"""

import math

import torch
from torch import Tensor, nn

from qkv.blocks.config import RotaryScaling, StackConfig


def _angles(positions: Tensor, frequencies: Tensor) -> Tensor:
    """position × frequency, (…, T, F), at the best precision that the device has."""
    exact = torch.float32 if positions.device.type == "mps" else torch.float64
    return positions.to(exact)[..., None] * frequencies.to(positions.device, exact)


def _frequencies(width: int, base: float, device: torch.device) -> Tensor:
    """base^(−2i/width), i = 0 … width/2 − 1."""
    exact = torch.float32 if device.type == "mps" else torch.float64
    return base ** -(torch.arange(0, width, 2, dtype=exact, device=device) / width)


def sinusoids(positions: Tensor, width: int, split: bool = False) -> Tensor:
    """The 2017 encoding: PE(p, 2i) = sin(p / 10000^(2i/C)), PE(p, 2i+1) = cos(p / 10000^(2i/C)); (B, T, C).

    `split` lays all sines before all cosines, as Marian has it: the same numbers in another order.
    """
    angles = _angles(positions, _frequencies(width, 10_000.0, positions.device))  # (B, T, C/2)
    if split:
        return torch.cat([angles.sin(), angles.cos()], dim=-1)
    return torch.stack([angles.sin(), angles.cos()], dim=-1).flatten(-2)


class Rotary:
    """The cosines and sines by which the queries and keys of one stack turn; made once a forward pass."""

    def __init__(
        self, positions: Tensor, rotary_dim: int, base: float, scaling: RotaryScaling | None, dtype: torch.dtype
    ):
        frequencies = _frequencies(rotary_dim, base, positions.device)
        if scaling is not None:
            frequencies = scale_frequencies(frequencies, scaling)
        angles = _angles(positions, frequencies)[:, None]  # (B, 1, T, D/2)
        exact = torch.promote_types(dtype, torch.float32)
        cos, sin = angles.cos().to(exact), angles.sin().to(exact)
        self.cos, self.sin = torch.cat([cos, cos], dim=-1), torch.cat([-sin, sin], dim=-1)  # (B, 1, T, D)

    def rotate(self, x: Tensor) -> Tensor:
        """Turn the pairs (x_i, x_{i+half}) of each head of x (B, H, T, D); what lies beyond them stays."""
        width = self.cos.shape[-1]
        if width < x.shape[-1]:
            return torch.cat([self.rotate(x[..., :width]), x[..., width:]], dim=-1)
        exact = x.to(self.cos.dtype)
        return torch.addcmul(exact * self.cos, exact.roll(width // 2, dims=-1), self.sin).to(x.dtype)


def scale_frequencies(frequencies: Tensor, scaling: RotaryScaling) -> Tensor:
    """Slow the frequencies down, so that positions beyond the trained length look like trained ones."""
    if scaling.kind == "linear":
        return frequencies / scaling.factor
    turns = scaling.original_max_positions * frequencies / (2 * math.pi)  # full turns within the trained length
    blend = ((turns - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor)).clamp(
        0.0, 1.0
    )  # 0: slow it, 1: leave it
    return frequencies * (blend + (1.0 - blend) / scaling.factor)


def alibi_slopes(heads: int, device: torch.device) -> Tensor:
    """2^(−8/H), 2^(−16/H), …; where H is no power of two, every second slope of the next one fills up the rest."""
    power = 2 ** math.floor(math.log2(heads))
    exact = torch.float32 if device.type == "mps" else torch.float64
    number = torch.arange(1, heads + 1, dtype=exact, device=device)  # made there: a CUDA graph takes no copies along
    return torch.exp2(-torch.where(number <= power, 8 * number, 8 * (number - power) - 4) / power)


def t5_bucket(distance: Tensor, num_buckets: int, max_distance: int, causal: bool) -> Tensor:
    """The bucket of each distance (key − query): near ones have one each, far ones share, logarithmically.

    Both directions get half of the buckets each; where the future is unseen the past has all of them.
    """
    bucket = torch.zeros_like(distance)
    if causal:
        distance = (-distance).clamp(min=0)
    else:
        num_buckets //= 2
        bucket = bucket + (distance > 0) * num_buckets
        distance = distance.abs()
    exact = num_buckets // 2
    # float32 and in this order, as T5 was trained: at a bucket's edge the rounding decides.
    share = torch.log(distance.clamp(min=1).float() / exact) / math.log(max_distance / exact)
    far = exact + (share * (num_buckets - exact)).long()
    return bucket + torch.where(distance < exact, distance, far.clamp(max=num_buckets - 1))


class ScoreBias(nn.Module):
    """What ALiBi or T5 add to the scores; T5's table is one for all layers of a stack."""

    def __init__(self, config: StackConfig, causal: bool) -> None:
        super().__init__()
        self.heads = config.heads
        self.num_buckets, self.max_distance, self.causal = config.relative_buckets, config.relative_max_distance, causal
        self.table = nn.Embedding(config.relative_buckets, config.heads) if config.position == "t5" else None

    def forward(self, query_positions: Tensor, key_positions: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
        """Positions of queries (B, T) and keys (B, S) → (B, H, T, S), in float32 or, if `dtype` is, better."""
        distance = key_positions[:, None, :] - query_positions[:, :, None]  # (B, T, S)
        if self.table is None:
            exact = torch.promote_types(dtype, torch.float32)
            slopes = alibi_slopes(self.heads, key_positions.device).to(exact)
            return -slopes[:, None, None] * distance.abs()[:, None]
        table: Tensor = self.table(
            t5_bucket(distance, self.num_buckets, self.max_distance, self.causal)
        )  # (B, T, S, H)
        return table.permute(0, 3, 1, 2)
