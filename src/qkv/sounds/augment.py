"""Random changes of training sounds. The changes of a sound depend only on its key, not on the rest of the batch.

    speed    played 0.85 to 1.15 times as fast, with the pitch, and moved within the time that the slowest needs
    noise    with probability 1/2, noise that is 5 to 35 decibels quieter than the sound
    mask     two bands and two stretches of time of the spectrogram are erased (SpecAugment, Park et al. 2019)

n samples, T frames, F mel bands
"""

from collections.abc import Collection, Sequence
from math import ceil

import numpy as np
from torch import Tensor

from qkv.errors import UsageError, suggest_name

AUGMENTATIONS = ("speed", "noise", "mask")
MIN_SPEED, MAX_SPEED = 0.85, 1.15
MIN_DECIBELS, MAX_DECIBELS = 5, 35
NUM_MASKS = 2
MAX_BAND, MAX_STRETCH = 0.25, 0.1  # of a mask, as fractions of all bands and all frames


def check_names(names: Sequence[str]) -> None:
    """Raise an error for an unknown name."""
    for name in names:
        if name not in AUGMENTATIONS:
            raise UsageError(f"data.augment: {name!r} is unknown; {suggest_name(name, AUGMENTATIONS)}")


def plan_frames(frames: np.ndarray, names: Collection[str]) -> np.ndarray:
    """The frames that sounds need after their changes, whatever their keys."""
    return np.ceil(frames / MIN_SPEED).astype(np.int64) if "speed" in names else frames


def change_samples(sound: np.ndarray, names: Collection[str], key: int) -> np.ndarray:
    """A sound (n,) with another speed, and with noise. With `speed`, it has n / MIN_SPEED samples."""
    rng = np.random.default_rng((key, 0))
    if "speed" in names:
        speed = rng.uniform(MIN_SPEED, MAX_SPEED)
        played = np.interp(np.arange(0, len(sound) - 1, speed), np.arange(len(sound)), sound)
        padded = np.zeros(ceil(len(sound) / MIN_SPEED), np.float32)
        start = int(rng.integers(max(1, len(padded) - len(played) + 1)))
        padded[start : start + len(played)] = played[: len(padded) - start]
        sound = padded
    if "noise" in names and rng.random() < 0.5:
        noise = make_noise(len(sound), rng)
        ratio = 10 ** (-rng.uniform(MIN_DECIBELS, MAX_DECIBELS) / 20)
        power = np.sqrt(np.mean(sound.astype(np.float64) ** 2) / np.mean(noise**2))
        sound = sound + (ratio * power * noise).astype(np.float32)
    return sound


def make_noise(count: int, rng: np.random.Generator) -> np.ndarray:
    """Noise between white and pink: its power falls with a random power of the frequency."""
    spectrum = np.fft.rfft(rng.standard_normal(max(2, count)))
    shaped = spectrum * np.arange(1, len(spectrum) + 1) ** -rng.uniform(0, 0.5)
    return np.fft.irfft(shaped, max(2, count))[:count]


def mask_frames(frames: Tensor, key: int) -> Tensor:
    """Frames (T, F) with masks, which have the mean of the sound."""
    rng, mean, masked = np.random.default_rng((key, 1)), frames.mean(), frames.clone()
    for axis, largest in ((1, MAX_BAND), (0, MAX_STRETCH)):
        size = frames.shape[axis]
        for _ in range(NUM_MASKS):
            length = int(rng.integers(int(largest * size) + 1))
            start = int(rng.integers(size - length + 1))
            masked.narrow(axis, start, length).fill_(mean)
    return masked
