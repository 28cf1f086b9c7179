"""Frames of a log-mel spectrogram → samples: the inverse of `qkv.sounds.mel`, without any weights.

1. The spectrum of each frame is estimated from its mel bands: the non-negative spectrum whose bands have the smallest
   Kullback–Leibler divergence from the given ones, by the multiplicative updates of Lee and Seung (2000).
2. Its phases are found by the fast algorithm of Griffin and Lim (Perraudin et al. 2013): transform the spectrogram to
   samples and back, keep the phases, extrapolate them with a momentum, and put the magnitudes back.

n frames, F mel bands, K frequencies, W samples of a window, S samples
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from qkv.sounds.config import GriffinLimConfig, LogMelConfig
from qkv.sounds.mel import FLOOR, mel_filters

MEL_UPDATES = 60
MOMENTUM = 0.99
LOUDEST = 2.0  # a full-scale tone has frames of about 1.7; frames that a model generates may be wrong
SEED = 0  # of the first phases


class GriffinLim(nn.Module):
    """Frames (n, F) → samples (n · hop,) between −1 and 1. Equal frames give equal samples."""

    def __init__(self, config: GriffinLimConfig) -> None:
        super().__init__()
        self.config = config

    def forward(self, frames: Tensor) -> Tensor:
        """Frames (n, F) → samples (n · hop,)."""
        if not len(frames):
            return frames.new_zeros(0)
        with torch.autocast(frames.device.type, enabled=False):  # powers need the range and precision of float32
            magnitudes = invert_mel(frames, self.config.frames)
            samples = restore_phases(magnitudes, self.config.frames, self.config.iterations)
        return samples / samples.abs().max().clamp(min=1.0)


def invert_mel(frames: Tensor, config: LogMelConfig) -> Tensor:
    """Log-mel frames (n, F) → magnitudes (n, K)."""
    bands = 10 ** (4 * frames.float().clamp(max=LOUDEST) - 4)  # powers
    filters = mel_filters(config).to(bands.device)  # (K, F)
    gain = filters.sum(1)
    powers = bands @ (filters / filters.sum(0).clamp(min=FLOOR)).T
    for _ in range(MEL_UPDATES):
        powers = powers * ((bands / (powers @ filters).clamp(min=FLOOR)) @ filters.T) / gain.clamp(min=FLOOR)
    return powers.sqrt() * (gain > 0)  # no band has the first and the last frequency


def restore_phases(magnitudes: Tensor, config: LogMelConfig, iterations: int) -> Tensor:
    """Magnitudes (n, K) → samples (n · hop,)."""
    count = len(magnitudes) * config.hop
    target = F.pad(magnitudes, (0, 0, 0, 1))  # in the middle of the last frame is the sample after the last one
    angles = torch.rand(target.shape, generator=torch.Generator().manual_seed(SEED)).to(target.device)
    phases, before = torch.polar(torch.ones_like(angles), 2 * torch.pi * angles), torch.zeros(())
    for _ in range(iterations):
        rebuilt = transform(invert(target * phases, config, count), config)
        ahead = rebuilt - MOMENTUM / (1 + MOMENTUM) * before
        phases, before = ahead / ahead.abs().clamp(min=1e-12), rebuilt
    return invert(target * phases, config, count)


def transform(samples: Tensor, config: LogMelConfig) -> Tensor:
    """Samples (S,) → their spectrogram (S / hop + 1, K), complex."""
    hann = torch.hann_window(config.window, device=samples.device)
    found = torch.stft(
        samples, config.window, config.hop, window=hann, center=True, pad_mode="constant", return_complex=True
    )
    return found.T


def invert(spectrogram: Tensor, config: LogMelConfig, count: int) -> Tensor:
    """A spectrogram (count / hop + 1, K) → `count` samples."""
    hann = torch.hann_window(config.window, device=spectrogram.device)
    return torch.istft(spectrogram.T, config.window, config.hop, window=hann, center=True, length=count)
