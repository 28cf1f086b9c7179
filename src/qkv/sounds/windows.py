"""Long sounds in windows: a sound is read piece by piece, and cut where it is quiet."""

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from qkv.sounds.files import resample_blocks

SEARCHED = 0.4  # the last part of a window in which the quietest moment is the cut
QUIET_SECONDS = 0.1  # whose loudness is compared


class SoundWindow(NamedTuple):
    """A part of a sound, and where it starts, in samples."""

    samples: np.ndarray
    start: int


def split_sound(source: Any, rate: int, max_seconds: float) -> Iterator[SoundWindow]:
    """The windows of a file (bytes or a path) or of `Samples`, at a rate. A short sound is one window.

    Raises `BadSound`.
    """
    size, start = max(1, int(max_seconds * rate)), 0
    held = np.zeros(0, np.float32)
    for block in resample_blocks(source, rate):
        held = np.concatenate([held, block])
        while len(held) > size:
            cut = find_quiet(held[:size], rate)
            yield SoundWindow(held[:cut], start)
            held, start = held[cut:], start + cut
    if len(held):
        yield SoundWindow(held, start)


def find_quiet(samples: np.ndarray, rate: int) -> int:
    """The middle of the quietest tenth of a second in the last part of a window."""
    width = max(1, min(int(QUIET_SECONDS * rate), len(samples) // 4))
    first = int((1 - SEARCHED) * len(samples))
    powers = np.cumsum(np.append(0.0, samples[first:].astype(np.float64) ** 2))
    return max(1, first + int((powers[width:] - powers[:-width]).argmin()) + width // 2)
