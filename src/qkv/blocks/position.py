"""Position encodings. Without them, attention ignores the order of tokens.

    added to the embedding      sinusoidal (the 2017 formula), learned (a table, which has a maximum length)
    rotating queries and keys   rotary: the angle between a query and a key depends only on their distance
    added to the scores         ALiBi (a slope per head), T5 (a learned number per bucket of distances)

Rotary and sinusoidal tables are computed in float64 (on MPS in float32) in each forward pass, and then rounded. They
are not buffers, which `.bfloat16()` would convert: at position 16,000, bfloat16 angles would be wrong by whole
rotations.

B batch, T queries, S keys, H heads, D head dim, C model width
"""

import math

import torch
from torch import Tensor, nn

from qkv.blocks.config import RotaryScaling, StackConfig


def _max_precision(device: torch.device) -> torch.dtype:
    return torch.float32 if device.type == "mps" else torch.float64


def _angles(positions: Tensor, frequencies: Tensor) -> Tensor:
    """Return position × frequency, (…, T, number of frequencies)."""
    dtype = _max_precision(positions.device)
    return positions.to(dtype)[..., None] * frequencies.to(positions.device, dtype)


def _frequencies(width: int, base: float, device: torch.device) -> Tensor:
    """Return base^(−2i/width) for i = 0 … width/2 − 1."""
    return base ** -(torch.arange(0, width, 2, dtype=_max_precision(device), device=device) / width)


def grid_positions(height: int, width: int, device: torch.device | str = "cpu") -> Tensor:
    """Return the row and the column of each cell of a grid, row by row, (height · width, 2).

    >>> grid_positions(1, 3).tolist()
    [[0, 0], [0, 1], [0, 2]]
    """
    return torch.cartesian_prod(torch.arange(height, device=device), torch.arange(width, device=device)).view(-1, 2)


def grid_sinusoids(positions: Tensor, width: int) -> Tensor:
    """Cells (…, 2) of a grid → sine-cosine vectors (…, C): the first half for the row, the second for the column."""
    return torch.cat([sinusoids(positions[..., axis], width // 2) for axis in (0, 1)], dim=-1)


def sinusoids(positions: Tensor, width: int, split: bool = False) -> Tensor:
    """Return PE(p, 2i) = sin(p / 10000^(2i/C)) and PE(p, 2i+1) = cos(p / 10000^(2i/C)), (B, T, C), as in 2017.

    With `split`, all sines come before all cosines, as in Marian.
    """
    angles = _angles(positions, _frequencies(width, 10_000.0, positions.device))  # (B, T, C/2)
    if split:
        return torch.cat([angles.sin(), angles.cos()], dim=-1)
    return torch.stack([angles.sin(), angles.cos()], dim=-1).flatten(-2)


class SinusoidalPositions(nn.Module):
    """Adds `sinusoids` to the embedding."""

    def __init__(self, config: StackConfig, *, split: bool) -> None:
        super().__init__()
        self.width, self.split = config.embedding_width or config.width, split

    def forward(self, positions: Tensor) -> Tensor:
        """Positions (B, T) → vectors (B, T, C)."""
        return sinusoids(positions, self.width, split=self.split)


class LearnedPositions(nn.Embedding):
    """A table of vectors, which are added to the embedding."""

    def __init__(self, config: StackConfig) -> None:
        super().__init__(config.max_positions + config.position_offset, config.embedding_width or config.width)
        self.offset = config.position_offset

    def forward(self, positions: Tensor) -> Tensor:
        """Positions (B, T) → vectors (B, T, C)."""
        return super().forward(positions + self.offset)


class Rotary:
    """The cosines and sines that rotate queries and keys, computed once per forward pass."""

    def __init__(
        self, positions: Tensor, rotary_dim: int, base: float, scaling: RotaryScaling | None, dtype: torch.dtype
    ):
        frequencies = _frequencies(rotary_dim, base, positions.device)
        if scaling is not None:
            frequencies = scale_frequencies(frequencies, scaling, base)
        self._set_angles(_angles(positions, frequencies), dtype, attention_factor(scaling))

    @classmethod
    def of_grid(cls, positions: Tensor, rotary_dim: int, base: float, dtype: torch.dtype) -> "Rotary":
        """Rotate by the cells of a grid, `positions` (B, T, 2): half of the angles by the row, half by the column."""
        frequencies, rotary = _frequencies(rotary_dim // 2, base, positions.device), cls.__new__(cls)
        angles = [_angles(positions[..., axis], frequencies) for axis in (0, 1)]  # (B, T, D/4) each
        rotary._set_angles(torch.cat(angles, dim=-1), dtype)
        return rotary

    def _set_angles(self, angles: Tensor, dtype: torch.dtype, factor: float = 1.0) -> None:
        angles = angles[:, None]  # (B, 1, T, D/2)
        dtype = torch.promote_types(dtype, torch.float32)
        cos, sin = angles.cos().to(dtype) * factor, angles.sin().to(dtype) * factor
        self.cos, self.sin = torch.cat([cos, cos], dim=-1), torch.cat([-sin, sin], dim=-1)  # (B, 1, T, D)

    def rotate(self, x: Tensor) -> Tensor:
        """Rotate the pairs (x_i, x_{i + rotary_dim/2}) in each head of x (B, H, T, D). Other dimensions stay."""
        width = self.cos.shape[-1]
        if width < x.shape[-1]:
            return torch.cat([self.rotate(x[..., :width]), x[..., width:]], dim=-1)
        x32 = x.to(self.cos.dtype)
        return torch.addcmul(x32 * self.cos, x32.roll(width // 2, dims=-1), self.sin).to(x.dtype)


class RotaryPositions(nn.Module):
    """Computes the rotary table of a forward pass. Layers with a sliding window may have a base of their own."""

    def __init__(self, config: StackConfig) -> None:
        super().__init__()
        self.config = config

    def forward(self, positions: Tensor, dtype: torch.dtype, window: int = 0) -> Rotary:
        """Positions (B, T) → the table for layers with this sliding window."""
        config = self.config
        base = config.rotary_base_sliding if window else config.rotary_base
        return Rotary(positions, config.rotary_dim, base, config.rotary_scaling, dtype)


def scale_frequencies(frequencies: Tensor, scaling: RotaryScaling, base: float) -> Tensor:
    """Lower the frequencies base^(−i/n), so that positions beyond the training length get angles as in training."""
    if scaling.kind == "linear":
        return frequencies / scaling.factor
    if scaling.kind == "yarn":
        keep = _yarn_ramp(frequencies, scaling, base)
        return frequencies * (keep + (1.0 - keep) / scaling.factor)
    rotations = scaling.original_max_positions * frequencies / (2 * math.pi)  # full rotations over the training length
    low, high = scaling.low_freq_factor, scaling.high_freq_factor
    keep = ((rotations - low) / (high - low)).clamp(0.0, 1.0)  # 0: divide the frequency by the factor, 1: keep it
    return frequencies * (keep + (1.0 - keep) / scaling.factor)


def _yarn_ramp(frequencies: Tensor, scaling: RotaryScaling, base: float) -> Tensor:
    """Return 1 for the frequencies that YaRN keeps, 0 for those that it divides by the factor, and a ramp between."""
    count = len(frequencies)

    def index_of(rotations: float) -> float:
        """The index i of the frequency base^(−i/n) that makes this number of rotations over the training length."""
        return count * math.log(scaling.original_max_positions / (2 * math.pi * rotations)) / math.log(base)

    first = max(math.floor(index_of(scaling.beta_fast)), 0)
    last = min(math.ceil(index_of(scaling.beta_slow)), 2 * count - 1)
    index = torch.arange(count, dtype=frequencies.dtype, device=frequencies.device)
    return 1.0 - ((index - first) / max(last - first, 1e-3)).clamp(0.0, 1.0)


def attention_factor(scaling: RotaryScaling | None) -> float:
    """Return the factor by which YaRN multiplies queries and keys; without YaRN it is 1."""
    if scaling is None or scaling.kind != "yarn":
        return 1.0
    return scaling.attention_factor or 0.1 * math.log(max(scaling.factor, 1.0)) + 1.0


def alibi_slopes(heads: int, device: torch.device) -> Tensor:
    """Return the slope of each head: 2^(−8/H), 2^(−16/H), … if H is a power of two.

    Otherwise, with p the power of two below H, the first p slopes are the slopes for p heads, and the others are every
    second slope for 2p heads.
    """
    power = 2 ** math.floor(math.log2(heads))
    # The tensor is created on the device, because a CUDA graph cannot contain a copy from the host.
    number = torch.arange(1, heads + 1, dtype=_max_precision(device), device=device)
    return torch.exp2(-torch.where(number <= power, 8 * number, 8 * (number - power) - 4) / power)


def t5_bucket(distance: Tensor, num_buckets: int, max_distance: int, causal: bool) -> Tensor:
    """Return the bucket of each distance (key − query). Each small distance has its own bucket.

    Large distances share buckets of logarithmic size. Each direction has half of the buckets; under a causal mask, all
    buckets are for the past.
    """
    bucket = torch.zeros_like(distance)
    if causal:
        distance = (-distance).clamp(min=0)
    else:
        num_buckets //= 2
        bucket = bucket + (distance > 0) * num_buckets
        distance = distance.abs()
    max_exact = num_buckets // 2
    # Keep T5's dtype and order of operations: other rounding would move some distances to the next bucket.
    fraction = torch.log(distance.clamp(min=1).float() / max_exact) / math.log(max_distance / max_exact)
    large = max_exact + (fraction * (num_buckets - max_exact)).long()
    return bucket + torch.where(distance < max_exact, distance, large.clamp(max=num_buckets - 1))


class ScoreBias(nn.Module):
    """The bias that ALiBi or T5 adds to the scores. All layers of a stack share T5's table."""

    def __init__(self, config: StackConfig, *, causal: bool, learned: bool) -> None:
        super().__init__()
        self.heads = config.heads
        self.num_buckets, self.max_distance, self.causal = config.relative_buckets, config.relative_max_distance, causal
        self.table = nn.Embedding(config.relative_buckets, config.heads) if learned else None

    def forward(self, query_positions: Tensor, key_positions: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
        """Positions of queries (B, T) and keys (B, S) → bias (B, H, T, S).

        ALiBi returns `dtype`, but at least float32. T5 returns the dtype of its table.
        """
        distance = key_positions[:, None, :] - query_positions[:, :, None]  # (B, T, S)
        if self.table is None:
            slopes = alibi_slopes(self.heads, key_positions.device).to(torch.promote_types(dtype, torch.float32))
            return -slopes[:, None, None] * distance.abs()[:, None]
        bucket = t5_bucket(distance, self.num_buckets, self.max_distance, self.causal)
        bias: Tensor = self.table(bucket)  # (B, T, S, H)
        return bias.permute(0, 3, 1, 2)
