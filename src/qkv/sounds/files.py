"""Sound files → samples, with soundfile and soxr. Memory is bounded, whatever a file claims to be.

The channels of a file are averaged. The samples are resampled to the rate of the model.
"""

import io
import math
import os
import wave
from collections.abc import Iterator
from functools import lru_cache
from os import PathLike
from typing import Any, NamedTuple

import numpy as np

from qkv.errors import QkvError

FORMATS = ("WAV", "WAVEX", "RF64", "FLAC", "OGG", "MP3", "AIFF", "AU", "CAF", "W64", "NIST")
MAX_SECONDS = 600  # of a record; 10 minutes at 16,000 Hz take 19 MB
MAX_CHANNELS = 32
MAX_RATE = 768_000
BLOCK = 2**16  # samples of each channel that are decoded at a time
FULL_SCALE = 2**15  # of 16-bit samples


class BadSound(Exception):
    """Raised for a file that cannot be decoded, with the reason and the category under which such files are counted."""

    def __init__(self, reason: str, category: str = "damaged sound") -> None:
        super().__init__(reason)
        self.reason, self.category = reason, category


class Samples(NamedTuple):
    """Samples in memory: (n,) or (n, channels), as fractions of the full scale or as integers."""

    values: np.ndarray
    rate: int


def import_soundfile() -> Any:
    """Return the module `soundfile`, or raise an error that says how to install it."""
    try:
        import soundfile
    except ImportError:
        raise QkvError('reading sounds needs the soundfile and soxr packages: pip install "qkv[sound]"') from None
    return soundfile


def is_sound(value: Any) -> bool:
    """Whether a value is the bytes of a file, a path, or samples."""
    return isinstance(value, bytes | PathLike | Samples) or (
        isinstance(value, np.ndarray) and value.ndim in (1, 2) and value.dtype.kind in "fiu"
    )


def open_sound(source: Any) -> Any:
    """Open the bytes of a file, or a path, as a `soundfile.SoundFile`. Raises `BadSound`, or `OSError` for a path."""
    soundfile = import_soundfile()
    if isinstance(source, str | PathLike):
        open(source, "rb").close()  # an error of the operating system, with its reason
    elif not source:
        raise BadSound("the file is empty", "empty sound")
    try:
        file = soundfile.SoundFile(io.BytesIO(source) if isinstance(source, bytes) else source)
    except (soundfile.SoundFileError, TypeError, ValueError):
        begin = source[:16] if isinstance(source, bytes) else read_start(source)
        raise BadSound(f"the file is not a sound: it begins with {begin!r}", "not a sound") from None
    if file.format not in FORMATS:
        raise BadSound(f"sound files of the format {file.format} are not read; convert it to WAV", "not a sound")
    if not (0 < file.channels <= MAX_CHANNELS and 0 < file.samplerate <= MAX_RATE):
        raise BadSound(f"the file claims {file.channels:,} channels at {file.samplerate:,} Hz")
    return file


def read_start(path: "str | PathLike[str]") -> bytes:
    """The first bytes of a file."""
    with open(path, "rb") as file:
        return file.read(16)


def read_blocks(source: Any, start: float = 0.0, end: float = math.inf) -> Iterator[tuple[np.ndarray, int]]:
    """The samples of an open file, or `Samples`, from `start` to `end` seconds: blocks of one channel, and the rate.

    Raises `BadSound`.
    """
    if isinstance(source, Samples):
        first, last = round(start * source.rate), None if end == math.inf else round(end * source.rate)
        yield to_mono(source.values[first:last]), source.rate
        return
    rate = source.samplerate
    first, left = round(start * rate), math.inf if end == math.inf else round(end * rate) - round(start * rate)
    try:
        source.seek(min(first, source.frames))
        while left > 0 and len(block := source.read(int(min(BLOCK, left)), dtype="float32", always_2d=True)):
            left -= len(block)
            yield to_mono(block), rate
    except import_soundfile().SoundFileError as error:
        raise BadSound(f"the sound is damaged: {error}") from None


def to_mono(block: np.ndarray) -> np.ndarray:
    """The mean of the channels as fractions of the full scale, float32. Raises `BadSound` for NaN and infinity."""
    if block.dtype.kind in "iu":
        scale = 2.0 ** (8 * block.dtype.itemsize - 1)
        block = block / scale - (1.0 if block.dtype.kind == "u" else 0.0)
    mono = block.astype(np.float32) if block.ndim == 1 else block.mean(1, dtype=np.float32)
    if not np.isfinite(mono).all():
        raise BadSound("the sound has samples that are not numbers (NaN or infinity)", "wrong samples")
    return mono


def resample_blocks(source: Any, rate: int, start: float = 0.0, end: float = math.inf) -> Iterator[np.ndarray]:
    """The samples of a file (bytes, a path, or open) or of `Samples` at a rate, in blocks of one channel.

    Raises `BadSound`.
    """
    opened = open_sound(source) if isinstance(source, bytes | str | PathLike) else source
    count, resample = 0, None
    for block, own_rate in read_blocks(opened, start, end):
        count += len(block)
        if own_rate != rate and resample is None:
            import soxr

            resample = soxr.ResampleStream(own_rate, rate, 1, dtype="float32")
        yield block if resample is None else resample.resample_chunk(block)
    if not count:
        raise BadSound("the sound has no samples", "empty sound")
    if resample is not None:
        yield resample.resample_chunk(np.zeros(0, np.float32), last=True)


def read_samples(source: Any, rate: int, start: float = 0.0, end: float = math.inf) -> np.ndarray:
    """The samples of `resample_blocks` together: (n,) float32. Raises `BadSound`, also for a sound that is too long."""
    parts: list[np.ndarray] = []
    for block in resample_blocks(source, rate, start, end):
        parts.append(block)
        if sum(map(len, parts)) > MAX_SECONDS * rate:
            reason = f"the sound is longer than {MAX_SECONDS:,} seconds; name its parts in the columns start and end"
            raise BadSound(reason, "long sound")
    samples = np.concatenate(parts)
    peak = float(np.abs(samples).max(initial=0))
    return samples / peak if peak > 1 else samples  # a file of floating-point numbers may exceed the full scale


def to_int16(samples: np.ndarray) -> np.ndarray:
    """Samples between −1 and 1 as 16-bit integers."""
    return (samples * FULL_SCALE).round().clip(-FULL_SCALE, FULL_SCALE - 1).astype(np.int16)


def read_wav_part(source: Any, start: float, end: float) -> bytes:
    """A part of a file (bytes or a path) as the bytes of a WAV file at its own rate. Raises `BadSound`."""
    file = (
        open_sound(source) if isinstance(source, bytes) else open_named_sound(str(source), os.stat(source).st_mtime_ns)
    )
    samples = read_samples(file, file.samplerate, start, end)
    return write_wav(to_int16(samples), file.samplerate)


@lru_cache(maxsize=1)
def open_named_sound(path: str, version: int) -> Any:
    """An open file, which is kept open, because the next part is usually in the same file."""
    return open_sound(path)


def write_wav(samples: np.ndarray, rate: int) -> bytes:
    """16-bit samples of one channel as the bytes of a WAV file."""
    buffer = io.BytesIO()
    with wave.open(buffer, "wb") as file:
        file.setparams((1, 2, rate, len(samples), "NONE", ""))
        file.writeframes(samples.astype("<i2").tobytes())
    return buffer.getvalue()
