"""Samples → frames of a log-mel spectrogram, equal to Whisper's, but without padding a sound to 30 seconds.

The logarithm of a sound is cut 8 below its maximum and scaled: (max(x, maximum − 8) + 4) / 4 (Radford et al. 2022).

k sounds, n frames of all sounds, W samples of a window, F mel bands
"""

from collections.abc import Sequence
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from qkv.sounds.config import LogMelConfig

FLOOR = 1e-10  # of the power in a band
RANGE = 8.0  # powers of ten below the maximum of a sound
MARGIN = 2  # frames after the last one that still overlap with the sound, and so may have its maximum
CHUNK = 4096  # frames whose spectra are in memory


def log_mel(sounds: Sequence[np.ndarray], config: LogMelConfig, num_frames: Sequence[int] = ()) -> Tensor:
    """The frames (n, F) of several sounds, one after the other. A sound is an array of samples between −1 and 1.

    By default, each sound has `config.count_frames` frames; more frames read zeros after its end.
    """
    counts = num_frames or [config.count_frames(len(sound)) for sound in sounds]
    windows = [cut_windows(sound, count + MARGIN, config) for sound, count in zip(sounds, counts, strict=True)]
    if not windows:
        return torch.zeros(0, config.mels)
    filters, hann = mel_filters(config), torch.hann_window(config.window)
    with torch.autocast("cpu", enabled=False):  # an evaluation may compute matrix products in bfloat16
        powers = [
            torch.fft.rfft(part * hann).abs().square() @ filters
            for part in torch.from_numpy(np.concatenate(windows)).split(CHUNK)
        ]
    logs = torch.cat(powers).clamp(min=FLOOR).log10()  # (n, F)
    parts = zip(logs.split([count + MARGIN for count in counts]), counts, strict=True)
    scaled = [torch.maximum(one[:count], one.max() - RANGE) for one, count in parts]
    return (torch.cat(scaled) + 4) / 4


def cut_windows(sound: np.ndarray, count: int, config: LogMelConfig) -> np.ndarray:
    """The samples of each frame, (count, W). The middle of the first frame is the first sample; what is before it is
    reflected, and there are zeros after the last sample.
    """
    half = config.window // 2
    needed = max(half + 1, (count - 1) * config.hop + half)
    padded = np.zeros(half + needed, np.float32)
    used = sound[:needed]
    padded[half : half + len(used)] = used
    padded[:half] = padded[2 * half : half : -1]
    return np.lib.stride_tricks.sliding_window_view(padded, config.window)[:: config.hop][:count]


@lru_cache(maxsize=8)
def mel_filters(config: LogMelConfig) -> Tensor:
    """Triangles on the mel scale of Slaney's Auditory Toolbox, each with an area of 1: (W/2 + 1, F)."""
    frequencies = np.linspace(0, config.rate / 2, config.window // 2 + 1)
    edges = to_hertz(np.linspace(0, to_mel(config.rate / 2), config.mels + 2))
    widths = np.diff(edges)
    slopes = edges[None] - frequencies[:, None]  # (W/2 + 1, F + 2)
    rising, falling = -slopes[:, :-2] / widths[:-1], slopes[:, 2:] / widths[1:]
    triangles = np.maximum(0, np.minimum(rising, falling)) * (2 / (edges[2:] - edges[:-2]))
    return torch.from_numpy(triangles.astype(np.float32))


LINEAR_UNTIL, HERTZ_PER_MEL = 1000.0, 200.0 / 3  # the scale is linear up to 1,000 Hz, then logarithmic
MEL_STEP = np.log(6.4) / 27


def to_mel(hertz: float) -> float:
    """Hertz → mel."""
    if hertz < LINEAR_UNTIL:
        return hertz / HERTZ_PER_MEL
    return float(LINEAR_UNTIL / HERTZ_PER_MEL + np.log(hertz / LINEAR_UNTIL) / MEL_STEP)


def to_hertz(mels: np.ndarray) -> np.ndarray:
    """Mel → hertz."""
    linear = LINEAR_UNTIL / HERTZ_PER_MEL
    return np.where(mels < linear, mels * HERTZ_PER_MEL, LINEAR_UNTIL * np.exp(MEL_STEP * (mels - linear)))
